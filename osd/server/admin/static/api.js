// Asks the admin routes. The key, where one is needed, lives in this tab's sessionStorage and nowhere else.
const NAME = 'osd-key'

export class Refused extends Error {}

export const key = {
  get: () => sessionStorage.getItem(NAME) ?? '',
  set: (value) => sessionStorage.setItem(NAME, value),
  forget: () => sessionStorage.removeItem(NAME),
}

async function ask(path, options = {}) {
  const headers = { ...options.headers }
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`
  const answer = await fetch(path, { ...options, headers })
  if (answer.ok) return answer
  const said = await answer.json().catch(() => ({}))
  const message = said.error?.message ?? `The server answered ${answer.status}.`
  throw answer.status === 401 || answer.status === 403 ? new Refused(message) : new Error(message)
}

export const get = async (path) => (await ask(`/admin${path}`)).json()

export const post = async (path, body) => (await ask(`/admin${path}`, {
  method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' },
})).json()

// Server-sent events over fetch: EventSource cannot send a key. Returns when the stream ends.
export async function follow(path, heard, signal) {
  const answer = await ask(`/admin${path}`, { signal })
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
  let held = ''
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const events = (held + value).split('\n\n')
    held = events.pop()
    for (const event of events) {
      const data = event.split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6)).join('\n')
      if (data) heard(JSON.parse(data))
    }
  }
}
