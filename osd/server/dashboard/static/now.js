// The tiles, from every snapshot.
import { by, count, el, fill, number, rate, short, tell } from './show.js'

const tile = (name, value, why = '', look = '') => el('div', {}, el('dt', {}, name),
  el('dd', { class: `value ${look}`, 'data-tile': name }, value), why && el('dd', { class: 'why' }, why))

function tiles(now) {
  const live = now.live ?? {}, measured = live.speedup_how === 'measured'
  const how = measured ? 'against measured rounds without a draft' : 'against rounds without a draft, which were estimated'
  return [
    tile('Acceptance α', number(live.alpha), 'of drafted tokens that were judged'),
    tile('Tokens a round τ', number(live.length), '1 is what no draft gives'),
    tile('Speed-up', live.speedup ? `${measured ? '' : '≈ '}${number(live.speedup)} ×` : '–', live.speedup ? how : 'known once drafts of several lengths were tried',
      live.speedup && measured ? (live.speedup < 1 ? 'bad' : 'good') : ''),
    tile('Tokens a second', rate(live.tokens_per_second)),
    tile('Requests a second', rate(live.requests_per_second)),
    tile('Drafted a round γ', number(live.gamma, 1)),
    tile('Running', `${now.running} of ${now.rows}`, `${count(now.waiting)} in line`),
    tile('Draft version here', short(now.draft_version), `${now.draft_version} · ${count(now.swaps)} swaps`),
  ]
}

export function showNow(now) {
  fill(by('tiles'), now, tiles)
  by('model').textContent = now.model
  const quiet = now.store ? `The store cannot be read: ${now.store}`
    : now.live?.requests ? '' : 'No request was finished in the last minute. Send one to the API\'s port, as `docs/server.md` shows: the numbers appear when it is done.'
  tell(by('now-empty'), quiet)
}
