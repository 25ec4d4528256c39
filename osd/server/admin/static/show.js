// Numbers for people, and elements. Text is set as text, never as HTML: it may be anybody's.
const NOTHING = '–'
const missing = (value) => value === null || value === undefined || Number.isNaN(value)

export const number = (value, digits = 2) => missing(value) ? NOTHING
  : value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })
export const count = (value) => number(value, 0)
export const rate = (value) => number(value, value >= 100 ? 0 : value >= 10 ? 1 : 2)
export const signed = (value, digits = 2) => missing(value) ? NOTHING
  : `${value < 0 ? '−' : '+'}${number(Math.abs(value), digits)}`
export const progress = ({ step, steps, loss }) => steps ? `step ${step} of ${steps}${loss ? `, loss ${number(loss, 3)}` : ''}` : ''
export const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false })
export const short = (version) => /-(\d{6})-/.test(version ?? '') ? `#${Number(/-(\d{6})-/.exec(version)[1])}` : (version ?? NOTHING)

export function span(seconds) {
  if (missing(seconds)) return NOTHING
  const size = Math.abs(seconds), sign = seconds < 0 ? '−' : ''
  if (size < 60) return `${sign}${number(size, size < 10 ? 1 : 0)} s`
  if (size < 3600) return `${sign}${number(size / 60, 1)} min`
  return size < 86400 ? `${sign}${number(size / 3600, 1)} h` : `${sign}${number(size / 86400, 1)} d`
}
export const when = (at) => Date.now() / 1000 - at < 86400 ? clock(at) : new Date(at * 1000).toLocaleDateString()

export function el(tag, facts = {}, ...children) {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(facts)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value)
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? '' : value)
  }
  made.append(...children.flat().filter((child) => !missing(child)))
  return made
}

function since(at) {
  const seconds = Math.max(0, Math.round(Date.now() / 1000 - at))
  return `${seconds < 60 ? `${seconds} s` : span(seconds)} ago`
}

// Goes on by itself, so that a table is not drawn anew for it under somebody's finger.
export const ago = (at) => el('time', { 'data-at': at, title: new Date(at * 1000).toLocaleString() }, since(at))
setInterval(() => document.querySelectorAll('time[data-at]').forEach((time) => { time.textContent = since(Number(time.dataset.at)) }), 1000)

export const by = (id) => document.getElementById(id)
// What stands between backticks is a command or a setting.
export const said = (text) => text.split('`').map((part, index) => index % 2 ? el('code', {}, part) : part)
export const empty = (text) => el('p', { class: 'empty' }, said(text))

export function tell(place, text) {
  place.hidden = !text
  place.replaceChildren(...said(text))
}

const shown = new WeakMap()

// Draws into a place anew only when something changed, and puts the focus back where it was.
export function fill(place, facts, draw) {
  const now = JSON.stringify(facts)
  if (shown.get(place) === now) return
  shown.set(place, now)
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : null
  place.replaceChildren(...[draw(facts)].flat())
  if (focused) place.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus()
}

// columns: [heading, row => cell, 'number' | 'name' | '']
export function table(columns, rows, caption, look = () => '') {
  const head = el('tr', {}, columns.map(([name, , kind]) => el('th', { scope: 'col', class: kind }, name)))
  const body = rows.map((row) => el('tr', { class: look(row) },
    columns.map(([name, cell, kind]) => el('td', { class: kind, 'data-label': name }, cell(row)))))
  return el('div', { class: 'scroll' }, el('table', { class: 'cards', 'aria-label': caption },
    el('thead', {}, head), el('tbody', {}, body)))
}
