// One request token by token. Texts live in the server's memory and on this page, nowhere else.
import { get } from './api.js'
import { clear, draw, ink } from './charts.js'
import { by, clock, count, el, empty, fill, number, short, tell } from './show.js'

let chosen = null, chart = null, requests = []

const item = (one) => el('button', { type: 'button', 'data-key': one.id, 'aria-pressed': String(one.id === chosen), onclick: () => open(one.id) },
  el('span', {}, one.route), el('small', {}, `${clock(one.at)} · ${count(one.tokens)} tokens · ${number(one.rounds_taken ? one.tokens / one.rounds_taken : null, 1)} a round`))

function list() {
  fill(by('inside-list'), { requests, chosen }, () => requests.map(item))
}

const WHY = {
  accepted: 'drafted, and what the target says', corrected: 'the target\'s own, in place of a refused token',
  own: 'the target\'s own, after a whole draft or without one',
}

function spans(round, index) {
  const title = `Round ${index + 1}: γ ${round.gamma}, ${round.drafted} drafted, ${round.accepted} accepted, ${short(round.version)}`
  return round.pieces.flatMap((piece) => {
    const look = piece.kind === 'own' ? 'own-token' : piece.kind
    const made = el('span', { class: look, title: `${WHY[piece.kind]}\n${title}` }, piece.text)
    return piece.kind === 'corrected' && round.refused ? [el('del', { class: 'refused', title: `drafted, refused\n${title}` }, round.refused), made] : [made]
  })
}

const legend = () => el('p', { class: 'legend' }, el('span', { class: 'accepted' }, 'accepted'), el('del', { class: 'refused' }, 'rejected draft'),
  el('span', { class: 'corrected' }, 'corrected by the target'), el('span', { class: 'own-token' }, 'the target\'s own'), el('span', { class: 'prompt' }, 'prompt'))

function rounds(one) {
  const colours = ink(), x = one.rounds.map((_, index) => index + 1)
  const bar = (name, y, color, extra = {}) => ({ type: 'bar', name, x, y, marker: { color }, hovertemplate: `round %{x}: %{y} ${name}<extra></extra>`, ...extra })
  return [[
    bar('accepted', one.rounds.map((round) => round.accepted), colours.good),
    bar('drafted in vain', one.rounds.map((round) => Math.max(0, round.drafted - round.accepted)), colours.line),
    { name: 'γ asked for', x, y: one.rounds.map((round) => round.gamma), mode: 'lines', line: { shape: 'hvh', color: colours.strong, width: 1.5 }, hovertemplate: 'γ %{y}<extra></extra>' },
  ], { barmode: 'stack', bargap: 0.15, xaxis: { title: { text: 'round' } }, yaxis: { title: { text: 'tokens' }, rangemode: 'tozero' } }]
}

function page(one) {
  chart = el('div', { class: 'chart', role: 'img', 'aria-label': 'Drafted and accepted tokens of each round' })
  const versions = [...new Set(one.rounds.map((round) => short(round.version)))].join(', ')
  const took = one.seconds === null ? '' : ` ${number(one.seconds)} s,`, end = one.finish_reason ? `, ended by ${one.finish_reason}` : ''
  const said = `${count(one.tokens)} tokens in ${count(one.rounds_taken)} rounds,${took} ${count(one.accepted)} of ${count(one.drafted)} drafted tokens accepted; route ${one.route}, version ${versions}${end}.`
  return [el('p', { class: 'note' }, said), legend(),
    el('div', { class: 'text', tabindex: '0', role: 'region', 'aria-label': 'Text of the request' }, el('span', { class: 'prompt' }, one.prompt), one.rounds.flatMap(spans)), chart]
}

async function open(id) {
  chosen = id
  list()
  if (chart) clear(chart)
  try {
    const one = await get(`/dashboard/inside/${encodeURIComponent(id)}`)
    by('inside-one').replaceChildren(...page(one))
    draw(chart, () => rounds(one))
  } catch (error) {
    by('inside-one').replaceChildren(empty(error.message))
  }
}

// Takes every text off the page.
export function forget() {
  if (chart) clear(chart)
  chosen = chart = null
  requests = []
  by('inside-one').replaceChildren()
  list()
}

export async function showInside() {
  const found = await get('/dashboard/inside')
  requests = found.requests
  const why = !found.allowed
    ? 'Texts are not shown on this server: it has API keys, is reached from elsewhere, or redacts. `server.inspect = true` allows it, for requests that may be learned from.'
    : requests.length ? '' : 'No finished request is held here yet. Send one: it is held unless it says `learn: false`.'
  tell(by('inside-empty'), why)
  if (!found.allowed) forget()
  list()
  if (chosen === null && requests.length) await open(requests[0].id)
}
