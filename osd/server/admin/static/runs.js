// Training runs: loss curves of the newest, and a table.
import { get } from './api.js'
import { clear, draw, line } from './charts.js'
import { ago, by, count, el, empty, fill, number, progress, short, signed, span, table } from './show.js'

const LOOK = { published: 'good', rejected: 'own', failed: 'bad', lost: 'bad' }
const place = by('losses')
let newest = ''

// Each run is a short line from its start to its end, so that the whole shows learning over time.
function curves(runs) {
  const names = [...new Set(runs.map((run) => run.draft))]
  return names.map((name, index) => {
    const x = [], y = [], text = []
    for (const run of runs.filter((one) => one.draft === name).reverse()) {
      const losses = run.loss_curve ?? [run.loss_first, run.loss_last].filter((loss) => loss !== null)
      const seconds = (run.finished_at ?? run.started_at) - run.started_at
      losses.forEach((loss, place) => {
        x.push(new Date(1000 * (run.started_at + seconds * place / Math.max(1, losses.length - 1))))
        y.push(loss)
        text.push(`${name} ${short(run.version)}<br>loss ${number(loss, 3)}, ${count(run.steps)} steps, ${run.state}`)
      })
      x.push(null); y.push(null); text.push('')
    }
    return { name, x, y, text, hoverinfo: 'text', mode: 'lines', line: { color: line(index), width: 2 } }
  })
}

const columns = [
  ['Started', (run) => ago(run.started_at), ''],
  ['Draft', (run) => run.draft, 'name'],
  ['', (run) => el('span', { class: `badge ${LOOK[run.state] ?? ''}` }, run.state === 'claimed' ? 'training' : run.state), ''],
  ['Because', (run) => run.began ?? '', 'name'],
  ['Took', (run) => span(run.finished_at === null ? null : run.finished_at - run.started_at), 'number'],
  ['Requests', (run) => count(run.requests), 'number'],
  ['Positions', (run) => count(run.positions), 'number'],
  ['Loss', (run) => run.loss_first === null ? '–' : `${number(run.loss_first, 3)} → ${number(run.loss_last, 3)}`, 'number'],
  ['Gate', (run) => signed(run.gain, 3), 'number'],
  ['Became', (run) => run.version ? short(run.version) : run.reason ?? progress(run.doing ?? {}), 'name'],
]

export async function showRuns() {
  const runs = await get('/dashboard/runs?limit=40')
  fill(by('runs-list'), runs, () => runs.length ? table(columns, runs.slice(0, 12), 'Training runs')
    : empty('No training yet. Start `osd trainer` on this store: it trains when enough requests were kept.'))
  const trained = runs.filter((run) => run.loss_first !== null)
  place.hidden = !trained.length
  const now = JSON.stringify(trained)
  if (now === newest) return
  newest = now
  trained.length ? draw(place, () => [curves(trained), { yaxis: { title: { text: 'loss' }, rangemode: 'tozero' }, xaxis: { type: 'date', nticks: place.clientWidth < 600 ? 4 : 9, tickangle: 0 } }]) : clear(place)
}
