// Plotly in the page's colours. Redrawn when the system goes from light to dark.
const dark = matchMedia('(prefers-color-scheme: dark)')
const LIGHT_LINES = ['#0b62b8', '#b3470b', '#0a7a4b', '#8a3fa0', '#7a5200', '#c2185b', '#00727a', '#566273']
const DARK_LINES = ['#6fb3f5', '#f5a36f', '#6fd6a4', '#d09be0', '#f0c667', '#ff8fb5', '#6fd3da', '#b6c2cf']
const drawn = new Map()

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
export const line = (index) => (dark.matches ? DARK_LINES : LIGHT_LINES)[index % LIGHT_LINES.length]
export const ink = () => ({ soft: colour('soft'), line: colour('line'), good: colour('good'), bad: colour('bad'), strong: colour('strong') })

function layout(own) {
  const axis = { gridcolor: colour('line'), zerolinecolor: colour('line'), linecolor: colour('line'), fixedrange: true, automargin: true }
  return {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', font: { color: colour('ink'), family: 'system-ui, sans-serif', size: 12 },
    margin: { l: 44, r: 12, t: 12, b: 34 }, showlegend: true, legend: { orientation: 'h', y: 1.02, yanchor: 'bottom', x: 0 },
    hovermode: 'closest', hoverlabel: { bgcolor: colour('card'), font: { color: colour('ink') } }, dragmode: false,
    ...own, xaxis: { ...axis, ...own.xaxis }, yaxis: { ...axis, ...own.yaxis },
  }
}

// make: () => [traces, layout]; called again when the colours change.
export function draw(place, make) {
  drawn.set(place, make)
  const [traces, own] = make()
  window.Plotly.react(place, traces, layout(own), { displayModeBar: false, responsive: true })
}

export function clear(place) {
  if (drawn.delete(place)) window.Plotly.purge(place)
}

dark.addEventListener('change', () => drawn.forEach((make, place) => draw(place, make)))
