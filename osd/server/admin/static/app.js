// Follows the server: a snapshot a second; the rest is asked for again at most every few seconds, while somebody looks.
import { showAcceptance } from './acceptance.js'
import { Refused, follow, get, key } from './api.js'
import { showDrafts } from './drafts.js'
import { showEngines } from './engines.js'
import { showGain } from './gain.js'
import { forget, showInside } from './inside.js'
import { showNow } from './now.js'
import { showRoutes } from './routes.js'
import { showRuns } from './runs.js'
import { by } from './show.js'

const EVERY = [[2000, showEngines], [2000, showAcceptance], [2000, showDrafts], [3000, showRuns], [2000, showInside], [5000, showRoutes], [5000, showGain]]
const AGAIN = 2000
const asked = new Map()
let stop

function say(text, look) {
  by('link').textContent = text
  by('link').className = look
}

const failed = (error) => error instanceof Refused ? askForKey(error.message) : say(error.message, 'lost')

function refresh(now) {
  const mine = stop
  for (const [every, show] of EVERY) {
    const last = asked.get(show) ?? -Infinity
    if (now - last < every || last === Infinity) continue
    asked.set(show, Infinity) // under way
    show().catch((error) => mine.signal.aborted || failed(error)) // a late refusal says nothing about the next key
      .finally(() => asked.set(show, performance.now()))
  }
}

function heard(snapshot) {
  say(snapshot.ready ? 'live' : 'draining', snapshot.ready ? 'live' : 'lost')
  showNow(snapshot)
  mark()
  if (!document.hidden) refresh(performance.now())
}

function askForKey(why) {
  stop.abort()
  forget()
  by('main').hidden = true
  by('sign-in').hidden = false
  by('sign-in-error').textContent = key.get() ? why : ''
  key.forget()
  by('sign-out').hidden = true
  say('a key is needed', 'lost')
  by('key').focus()
}

async function run() {
  const mine = stop = new AbortController()
  while (!mine.signal.aborted) {
    try {
      await get('/servers') // says what is wrong with the key, if anything is
      by('main').hidden = false
      by('sign-in').hidden = true
      by('sign-out').hidden = !key.get()
      await follow('/events', heard, mine.signal)
      say('the server ended; trying again …', 'lost')
    } catch (error) {
      if (mine.signal.aborted) return
      if (error instanceof Refused) return askForKey(error.message)
      say('the server cannot be reached; trying again …', 'lost')
    }
    await new Promise((done) => setTimeout(done, AGAIN))
  }
}

by('sign-in').addEventListener('submit', (event) => {
  event.preventDefault()
  key.set(by('key').value.trim())
  by('key').value = ''
  run()
})
by('sign-out').addEventListener('click', () => { key.forget(); location.reload() })

const links = [...document.querySelectorAll('nav a')]
const sections = [...document.querySelectorAll('main section')]

function mark() {
  const passed = sections.filter((section) => section.getBoundingClientRect().top < innerHeight / 4)
  const here = (passed.at(-1) ?? sections[0]).id
  for (const link of links) link.hash === `#${here}` ? link.setAttribute('aria-current', 'true') : link.removeAttribute('aria-current')
}

addEventListener('scroll', mark, { passive: true })
mark()
run()
