// The tiles, from every snapshot.
import { by, count, el, fill, number, rate, short, table, tell } from './show.js'

const tile = (name, value, why = '', look = '') => el('div', {}, el('dt', {}, name),
  el('dd', { class: `value ${look}`, 'data-tile': name }, value), why && el('dd', { class: 'why' }, why))

function tiles(now) {
  const live = now.live ?? {}, measured = live.speedup_how === 'measured'
  const how = measured ? 'against measured rounds without a draft' : 'against rounds without a draft, which were estimated'
  return [
    tile('Acceptance α', number(live.alpha), 'of drafted tokens that were judged'),
    tile('Tokens a round τ', number(live.length), '1 is what no draft gives'),
    tile('Speed-up', live.speedup ? `${measured ? '' : '≈ '}${number(live.speedup)} ×` : '–', live.speedup ? how : now.rows === undefined ? 'each engine measures its own, below' : 'known once drafts of several lengths were tried',
      live.speedup && measured ? (live.speedup < 1 ? 'bad' : 'good') : ''),
    tile('Tokens a second', rate(live.tokens_per_second)),
    tile('Requests a second', rate(live.requests_per_second)),
    tile('Drafted a round γ', number(live.gamma, 1)),
    ...here(now),
  ]
}

const here = (now) => now.replicas ? [
  tile('Running', count(now.running), 'requests that were passed on'),
  tile('Replicas', `${now.replicas.filter((one) => one.state === 'up').length} of ${now.replicas.length}`, 'get requests'),
] : now.rows === undefined ? [] : [
  tile('Running', `${now.running} of ${now.rows}`, `${count(now.waiting)} in line`),
  tile('Draft version here', short(now.draft_version), `${now.draft_version} · ${count(now.swaps)} swaps`),
]

const LOOKS = { up: 'good', down: 'bad', misfit: 'bad', draining: 'own' }

const replicas = (all) => [el('h3', {}, 'Replicas'), table([
  ['Replica', (one) => one.name, 'name'],
  ['Draft', (one) => one.draft, 'name'],
  ['', (one) => el('span', { class: `badge ${LOOKS[one.state]}` }, one.state), ''],
  ['Running', (one) => count(one.running), 'number'],
  ['Answered', (one) => count(one.answered), 'number'],
  ['Failed', (one) => count(one.failed), 'number'],
  ['What is wrong', (one) => one.trouble, ''],
], all, 'Replicas')]

export function showNow(now) {
  fill(by('tiles'), now, tiles)
  by('model').textContent = now.model
  by('replicas').hidden = !now.replicas
  if (now.replicas) {
    fill(by('replicas'), now.replicas, replicas)
  }
  if (now.rows === undefined) by('inside-note').textContent = 'The newest requests that the store keeps of the engines that osd harvests.'
  const quiet = now.store ? `The store cannot be read: ${now.store}`
    : now.live?.requests ? (now.live.undrafted ?? []).join(' ') : 'No request was finished in the last minute. Send one: the numbers appear when it is done.'
  tell(by('now-empty'), quiet)
}
