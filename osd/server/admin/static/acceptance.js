// Acceptance over time, with what happened in between.
import { get } from './api.js'
import { clear, draw, ink, line } from './charts.js'
import { by, count, number, short, tell, when } from './show.js'

const route = by('timeline-route'), seconds = by('timeline-seconds'), place = by('timeline')
const LOOK = { version: ['dot', 'soft', 'new version'], promote: ['dash', 'strong', 'promoted'], rollback: ['dash', 'bad', 'taken back'], drift: ['dashdot', 'bad', 'traffic drifted'] }
const LABELS = 14, JUDGED = 20
const routes = []
let newest = null

const time = (at) => new Date(at * 1000)

// A point stands for JUDGED tokens or more: of fewer the rate is noise.
function curve(name, points, bucket) {
  const x = [], y = [], text = []
  let last = null, accepted = 0, judged = 0
  for (const point of points) {
    if (last !== null && point.at - last > 6 * bucket) { // nobody asked
      x.push(time(last + bucket)); y.push(null); text.push('')
      accepted = judged = 0
    }
    last = point.at; accepted += point.accepted; judged += point.judged
    if (judged < JUDGED) continue
    x.push(time(point.at + bucket / 2)); y.push(accepted / judged)
    text.push(`${name}<br>α ${number(accepted / judged)} of ${count(judged)} judged tokens, τ ${number(point.length)}<br>${when(point.at)}`)
    accepted = judged = 0
  }
  const colour = line(routes.indexOf(name))
  return { name, x, y, text, hoverinfo: 'text', mode: x.length < 3 ? 'markers' : 'lines+markers', line: { color: colour, width: 2 }, marker: { color: colour, size: 5 } }
}

function markers(marks) {
  const colours = ink()
  const text = marks.map((mark) => `${mark.subject}<br>${LOOK[mark.kind][2]}, ${when(mark.at)}`)
  return {
    name: 'what happened', x: marks.map((mark) => time(mark.at)), y: marks.map(() => 0), text, hoverinfo: 'text', mode: 'markers',
    marker: { symbol: 'triangle-up', size: 9, color: marks.map((mark) => colours[LOOK[mark.kind][1]]) }, showlegend: false,
  }
}

function picture() {
  const colours = ink(), chosen = newest.points.filter((point) => !route.value || point.route === route.value)
  const traces = routes.filter((name) => !route.value || name === route.value)
    .map((name) => curve(name, chosen.filter((point) => point.route === name), newest.bucket))
  const marks = newest.marks
  const shapes = marks.map((mark) => ({
    type: 'line', x0: time(mark.at), x1: time(mark.at), yref: 'paper', y0: 0, y1: 1, layer: 'below',
    line: { width: mark.kind === 'version' ? 1 : 1.5, dash: LOOK[mark.kind][0], color: colours[LOOK[mark.kind][1]] },
  }))
  const crowded = marks.length > (place.clientWidth < 600 ? LABELS / 2 : LABELS)
  const few = crowded ? marks.filter((mark) => mark.kind !== 'version') : marks
  const annotations = few.map((mark) => ({
    x: time(mark.at), yref: 'paper', y: 1, yanchor: 'top', xanchor: 'left', showarrow: false, textangle: 90,
    text: mark.kind === 'version' ? short(mark.subject) : `${LOOK[mark.kind][2]} ${mark.kind === 'drift' ? mark.subject : short(mark.subject)}`,
    font: { size: 10, color: colours[LOOK[mark.kind][1]] },
  }))
  const first = Math.max(newest.since, Math.min(newest.points[0]?.at ?? newest.since, marks[0]?.at ?? newest.until))
  return [[...traces, markers(marks)], {
    shapes, annotations, xaxis: { type: 'date', nticks: place.clientWidth < 600 ? 4 : 9, tickangle: 0, range: [time(first - newest.bucket), time(newest.until)] },
    yaxis: { range: [-0.03, 1.03], title: { text: 'α' } },
  }]
}

function say() {
  const last = routes.map((name) => newest.points.filter((point) => point.route === name).at(-1)).filter(Boolean)
  const parts = last.slice(0, 8).map((point) => `${point.route} ${number(point.alpha)}`)
  const versions = newest.marks.filter((mark) => mark.kind === 'version').length
  return parts.length ? `Newest: ${parts.join(', ')}. ${versions} new version${versions === 1 ? '' : 's'} in this time.` : ''
}

function show() {
  for (const name of new Set(newest.points.map((point) => point.route))) {
    if (!routes.includes(name)) { routes.push(name); route.add(new Option(name, name)) }
  }
  const nothing = newest.points.length === 0
  tell(by('timeline-empty'), nothing ? 'No drafts were judged in this time. Send requests, or choose a longer time.' : '')
  place.hidden = nothing
  by('timeline-said').textContent = say()
  nothing ? clear(place) : draw(place, picture)
}

export async function showAcceptance() {
  newest = await get(`/dashboard/timeline?seconds=${seconds.value}`)
  show()
}

route.addEventListener('change', () => newest && show())
seconds.addEventListener('change', () => showAcceptance().catch(() => {}))
