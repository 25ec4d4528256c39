// The confirmation dialog. It stays open while the server works and when it refuses.
import { by } from './show.js'

const dialog = by('ask'), yes = by('ask-yes'), reason = by('ask-reason')

export function confirm({ title, text, button, wantsReason = false, act }) {
  by('ask-title').textContent = title
  by('ask-text').textContent = text
  by('ask-error').textContent = ''
  yes.textContent = button
  reason.hidden = by('ask-label').hidden = !wantsReason
  reason.value = ''
  yes.onclick = async () => {
    yes.disabled = true
    try {
      await act(reason.value.trim())
      dialog.close()
    } catch (error) {
      by('ask-error').textContent = error.message
    } finally {
      yes.disabled = false
    }
  }
  dialog.showModal()
  by('ask-no').focus()
}

by('ask-no').onclick = () => dialog.close()
