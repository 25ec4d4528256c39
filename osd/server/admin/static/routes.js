// Routes with their traffic, and what the trainer proposes.
import { get } from './api.js'
import { ago, by, count, el, empty, fill, number, said, signed, table } from './show.js'

function rows(routes) {
  const all = routes.reduce((sum, route) => sum + (route.traffic?.requests ?? 0), 0)
  const share = (route) => all ? (route.traffic?.requests ?? 0) / all : 0
  return table([
    ['Route', (route) => route.name, 'name'],
    ['Draft', (route) => route.draft ? [route.draft, ...route.candidates].join(', ') : 'removed', 'name'],
    ['Requests, one day', (route) => count(route.traffic?.requests ?? 0), 'number'],
    ['Share', (route) => el('span', {}, el('progress', { class: 'share', max: 1, value: share(route), 'aria-hidden': 'true' }), el('span', { class: 'percent' }, `${number(100 * share(route), 0)} %`)), 'number'],
    ['α', (route) => number(route.traffic?.alpha), 'number'],
    ['τ', (route) => number(route.traffic?.mean_acceptance_length), 'number'],
  ], [...routes].sort((a, b) => share(b) - share(a)), 'Routes')
}

function subject(proposal) {
  const names = (proposal.routes ?? []).join(' + ')
  if (proposal.kind === 'split') return `give “${proposal.name}” of ${names} a route and a draft of its own`
  return proposal.kind === 'merge' ? `let one draft serve ${names}` : said(`${names}: its traffic is not what it was. ${proposal.advice ?? ''}`)
}

function gain(proposal) {
  const seen = proposal.evidence ?? {}
  if (seen.before === undefined || seen.after === undefined) return '–'
  const apart = seen.apart_error === undefined ? '' : `; by a draft of its own ${signed(seen.apart, 3)} ± ${number(seen.apart_error, 3)}`
  return `α ${number(seen.before)} → ${number(seen.after)} (${signed(seen.after - seen.before)})${apart}`
}

const proposals = (found) => found.length ? table([
  ['No.', (one) => one.id, 'number'], ['Found', (one) => ago(one.at), ''], ['What', subject, 'name'],
  ['Predicted gain', gain, ''], ['', (one) => el('span', { class: `badge ${one.state === 'open' ? 'own' : ''}` }, one.state), ''],
], found, 'Proposals') : empty('Nothing is proposed. `osd router discover` looks for kinds of traffic that would win by a draft of their own.')

export async function showRoutes() {
  fill(by('routes-list'), await get('/dashboard/routes'), (facts) => [
    facts.routes.length ? rows(facts.routes) : empty('Everything goes one way. `osd router add` makes a route of its own for a kind of traffic.'),
    el('h3', {}, 'Proposals'), proposals(facts.proposals),
    facts.proposals.some((one) => one.state === 'open') ? el('p', { class: 'note' }, said('Settle one with `osd router apply NUMBER` or `osd router decline NUMBER`.')) : null,
  ].filter(Boolean))
}
