// Every draft with its versions: what the gate saw, who serves which, and the two buttons. Before them, the servers.
import { get, post } from './api.js'
import { confirm } from './ask.js'
import { ago, by, count, el, empty, fill, number, progress, short, signed, table } from './show.js'

const FEW = 8
const LOOK = { serving: 'good', ready: 'good', rejected: 'own', candidate: 'own', rolled_back: 'bad', quarantined: 'bad' }
const MEANS = {
  candidate: 'written, not judged yet', ready: 'may be loaded', serving: 'a server drafts with it', retired: 'a newer one took its place',
  rejected: 'the gate found it no better', rolled_back: 'taken back', quarantined: 'its files are not what was published',
}
const opened = new Set()

function evidence(version) {
  const seen = version.evidence ?? {}
  const back = seen.rolled_back ?? seen.quarantined
  const parts = []
  if (version.number === 0) parts.push('what osd started with')
  if (seen.difference !== undefined && seen.before !== undefined) {
    parts.push(`${number(seen.before)} → ${number(seen.after)} (${signed(seen.difference, 3)}, at least ${signed(seen.lower, 3)}) on ${count(seen.requests)} requests`)
  } else if (seen.reason) parts.push(seen.reason)
  if (back && LOOK[version.state] === 'bad') parts.push(`taken back: ${back.reason}`)
  return parts.join('; ')
}

// What holds the draft at this version, and the button that lifts the hold or makes one.
function hold(version, again) {
  const { draft, hold: held } = version
  if (held) {
    return [el('span', { class: 'badge own', title: held.reason, 'data-hold': draft }, `${held.kind} ${ago(held.at)}`), ' ', el('button', {
      type: 'button', 'data-key': `resume ${draft}`, onclick: () => confirm({
        title: `Let ${draft} learn again?`, button: 'Resume', text: `It is ${held.kind} at ${version.id} (${held.reason}). Trainers go on from there, and what the gate finds better replaces it.`,
        act: async () => { await post('/drafts/resume', { draft }); await again() },
      }),
    }, 'Resume …')]
  }
  return [el('button', {
    type: 'button', 'data-key': `freeze ${draft}`, onclick: () => confirm({
      title: `Freeze ${draft}?`, button: 'Freeze', wantsReason: true, text: `${version.id} goes on serving, and nothing replaces it until the draft is resumed. Requests are kept meanwhile and wait.`,
      act: async (reason) => { await post('/drafts/freeze', { draft, reason: reason || 'asked for on the dashboard' }); await again() },
    }),
  }, 'Freeze …')]
}

function buttons(version, again) {
  if (version.current) {
    const current = el('span', { class: 'badge good' }, 'current'), held = hold(version, again)
    if (version.parent === null) return [current, ' ', ...held]
    return [current, ' ', ...held, ' ', el('button', {
      type: 'button', 'data-key': `back ${version.id}`, onclick: () => confirm({
        title: `Take back ${short(version.id)} of ${version.draft}?`, button: 'Roll back', wantsReason: true,
        text: `${version.id} is current. Servers go back to the nearest sound version before it, between two steps and without a pause, and nothing replaces that until the draft is resumed. The target's output does not change, only how fast it comes.`,
        act: async (reason) => { await post('/drafts/rollback', { draft: version.draft, reason: reason || 'asked for on the dashboard' }); await again() },
      }),
    }, 'Roll back …')]
  }
  if (version.state === 'candidate') return ''
  return el('button', {
    type: 'button', 'data-key': `promote ${version.id}`, 'aria-label': `Promote ${version.id}`, onclick: () => confirm({
      title: `Make ${short(version.id)} of ${version.draft} current?`, button: 'Promote',
      text: `${version.id} is ${version.state.replace('_', ' ')}: ${MEANS[version.state]}. All servers swap it in between two steps, whatever the gate said, and nothing replaces it until the draft is resumed. The target's output does not change, only how fast it comes.`,
      act: async () => { await post('/drafts/promote', { version: version.id }); await again() },
    }),
  }, 'Promote …')
}

function one(name, versions, serving, again) {
  const newest = [...versions].reverse(), all = opened.has(name)
  const shown = all ? newest : newest.filter((version, index) => index < FEW || version.current)
  const columns = [
    ['Version', (version) => el('span', { title: version.id }, [short(version.id), ...version.names].join(' ')), ''],
    ['State', (version) => el('span', { class: `badge ${LOOK[version.state] ?? ''}`, title: MEANS[version.state] }, version.state.replace('_', ' ')), ''],
    ['Made', (version) => ago(version.created_at), ''],
    ['From', (version) => version.parent ? short(version.parent) : '', ''],
    ['Gate, before → after', evidence, 'name'],
    ['Servers', (version) => serving.filter((row) => row.version === version.id).map((row) => row.worker).join(', '), 'name'],
    ['', (version) => el('span', {}, buttons(version, again)), ''],
  ]
  return el('div', { 'data-draft': name }, el('h3', {}, name), table(columns, shown, `Versions of ${name}`, (version) => version.state === 'rejected' ? 'faint' : ''),
    newest.length > FEW ? el('button', {
      type: 'button', 'data-key': `all ${name}`, 'aria-expanded': String(all),
      onclick: () => { all ? opened.delete(name) : opened.add(name); again() },
    }, all ? 'Show fewer' : `Show all ${newest.length}`) : null)
}

const holds = (row) => row.drafts.map((one) => `${short(one.version)} ${one.canary ? 'tried first' : one.matches ? '' : 'not what it should be'}`.trim()).join(', ')

function servers(rows) {
  const columns = [
    ['Server', (row) => el('span', { title: row.url }, row.id), 'name'],
    ['State', (row) => el('span', { class: `badge ${row.state === 'serving' ? 'good' : row.state === 'gone' ? 'bad' : 'own'}` }, row.state), ''],
    ['Since', (row) => ago(row.started_at), ''],
    ['Heard of', (row) => ago(row.heartbeat_at), ''],
    ['Running', (row) => count(row.running), ''],
    ['Requests/s', (row) => number(row.rate), ''],
    ['Drafts with', holds, 'name'],
    ['Trouble', (row) => row.trouble ?? '', 'name'],
  ]
  return el('div', { id: 'servers' }, el('h3', {}, 'Servers'), table(columns, rows, 'Servers of this store', (row) => row.state === 'gone' ? 'faint' : ''))
}

const does = ({ doing }) => doing.draft ? [doing.draft, progress(doing)].filter(Boolean).join(', ') : doing.note ?? 'nothing is due'

function trainers(rows) {
  const columns = [
    ['Trainer', (row) => row.id, 'name'],
    ['State', (row) => el('span', { class: `badge ${row.state === 'training' ? 'good' : row.state === 'gone' ? 'bad' : 'own'}` }, row.state), ''],
    ['Since', (row) => ago(row.started_at), ''],
    ['Heard of', (row) => ago(row.heartbeat_at), ''],
    ['Does', does, 'name'],
  ]
  return el('div', { id: 'trainers' }, el('h3', {}, 'Trainers'), table(columns, rows, 'Trainers of this store', (row) => row.state === 'gone' ? 'faint' : ''))
}

export async function showDrafts() {
  const [versions, workers] = await Promise.all([get('/drafts'), get('/servers')])
  fill(by('servers-list'), [workers.servers, workers.trainers], ([alive, training]) => [
    ...(alive.length ? [servers(alive)] : []), ...(training.length ? [trainers(training)] : []),
  ])
  fill(by('drafts-list'), { versions, workers: workers.serving, opened: [...opened] }, (facts) => {
    const names = [...new Set(facts.versions.map((version) => version.draft))]
    if (!names.length) return empty('No draft is known to this store yet. `osd serve` enters its own when it starts, `osd engines add` that of a vLLM.')
    const lists = names.map((name) => one(name, facts.versions.filter((version) => version.draft === name), facts.workers, showDrafts))
    const learned = facts.versions.some((version) => version.number > 0)
    return learned ? lists : [...lists, empty('Nothing was learned yet. Start `osd trainer` on this store; a version appears when enough requests were kept and the gate finds it better.')]
  })
}
