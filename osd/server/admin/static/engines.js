// The attached engines: whether each is reached, what it answered, what drafting gains on it.
import { get } from './api.js'
import { ago, by, count, el, fill, number, short, table } from './show.js'

const answers = (one) => `${count(one.requests)}${one.dropped ? `, ${count(one.dropped)} dropped` : ''}`

const columns = [
  ['Engine', (one) => el('span', { title: one.url }, one.name), 'name'],
  ['State', (one) => el('span', { class: `badge ${one.up ? 'good' : 'bad'}`, title: one.state }, one.up ? 'up' : 'down'), ''],
  ['Draft', (one) => `${one.draft} ${one.version ? short(one.version) : ''}`, 'name'],
  ['Answers', answers, 'number'],
  ['Last answer', (one) => one.answered_at ? ago(one.answered_at) : '–', ''],
  ['α', (one) => number(one.alpha), 'number'],
  ['Gain', (one) => one.gain ? el('span', { class: one.gain < 1 ? 'bad' : '' }, `${number(one.gain)} ×`) : '–', 'number'],
  ['Drafts now', (one) => one.up ? one.drafting ?? 'as it was started' : one.state, 'name'],
]

export async function showEngines() {
  const rows = (await get('/dashboard/engines')).map(({ age, ...row }) => row)
  by('engines').hidden = !rows.length
  fill(by('engines'), rows, () => [el('h3', {}, 'Attached engines'), table(columns, rows, 'Attached engines')])
}
