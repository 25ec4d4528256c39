// What speculation saved and what learning cost.
import { get } from './api.js'
import { by, count, el, empty, fill, number, span, table } from './show.js'

const known = (rows) => rows.filter((row) => row.saved_seconds !== null)
const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0)
const tile = (name, value, look, why) => el('div', {}, el('dt', {}, name), el('dd', { class: `value ${look}` }, value), el('dd', { class: 'why' }, why))

const tiles = (rows) => {
  const net = sum(rows, 'net_gain_seconds')
  return el('dl', { class: 'tiles' },
    tile('Saved by drafts', span(sum(rows, 'saved_seconds')), '', 'decode seconds, each request\'s own share'),
    tile('Spent on training', span(sum(rows, 'training_seconds')), '', `${count(sum(rows, 'training_runs'))} runs, gates included`),
    tile('Net gain', span(net), net < 0 ? 'bad' : 'good', net < 0 ? 'drafts saved less than training cost' : 'drafts saved more than training cost'))
}

const pays = ({ pays_in_seconds: seconds }) => seconds === 0 ? 'it has paid for itself'
  : seconds === null ? 'not at the pace of the last hour' : `in ${span(seconds)} at the pace of the last hour`
const accounts = [
  ['Draft', (row) => row.draft, 'name'], ['Training cost', (row) => span(row.cost_seconds), 'number'],
  ['What was learned saved', (row) => span(row.learned_seconds), 'number'], ['Training pays for itself', pays, ''],
]

const columns = [
  ['Draft', (row) => row.draft, 'name'], ['Tokens', (row) => count(row.emitted), 'number'], ['Decoding', (row) => span(row.decode_seconds), 'number'],
  ['Without drafts', (row) => span(row.without_seconds), 'number'], ['Saved', (row) => span(row.saved_seconds), 'number'],
  ['Training', (row) => span(row.training_seconds), 'number'], ['Net gain', (row) => span(row.net_gain_seconds), 'number'],
]

const how = (plain) => plain ? `A round without a draft takes ${number(plain.ms, 2)} ms, ${plain.how === 'measured' ? 'measured' : 'estimated from drafts of several lengths'}. A training second is counted like a decoding second, which on an idle machine it is not.`
  : 'What a round without a draft would take is not known yet: it follows from rounds without one, or from drafts of several lengths.'

export async function showGain() {
  fill(by('gain-list'), await get('/dashboard/gain'), ({ rows, plain_round, pay_back }) => rows.length
    ? [known(rows).length ? tiles(known(rows)) : null, el('p', { class: 'note' }, how(plain_round)), table(columns, rows, 'Net gain by draft'),
      pay_back.length ? table(accounts, pay_back, 'When training pays for itself') : null].filter(Boolean)
    : empty('Nothing was decoded yet. Send requests; what drafts save is counted from the first one on.'))
}
