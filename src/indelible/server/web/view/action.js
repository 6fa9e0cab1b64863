// The reply needs the user: the calls of tools that run outside, each with a field for its result.

import { clockTime } from "../core/formatting.js";
import { html, useState } from "./html.js";
import { icon } from "./icons.js";
import { api, state, toasts, unsaved } from "./page.js";

/** @import { On } from "./html.js" */
/** @typedef {{text: string, failed: boolean}} Answer */

/** @param {string | undefined} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text || "{}"), null, 2);
  } catch {
    return text ?? "";
  }
}

export function Action() {
  const { chat } = state;
  const { calls, deadline_at } = chat?.action ?? { calls: [], deadline_at: null };
  const kept = Object.fromEntries(calls.map(({ id }) => [id, { text: unsaved.get(`answer:${id}`), failed: false }]));
  const [answers, setAnswers] = useState(/** @type {Record<string, Answer>} */ (kept));
  const set = (/** @type {string} */ id, /** @type {Partial<Answer>} */ change) => {
    setAnswers({ ...answers, [id]: { ...answers[id], ...change } });
    if (change.text !== undefined) unsaved.set(`answer:${id}`, change.text);
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const results = calls.map(({ id }) => ({ tool_call_id: id, output: answers[id]?.text ?? "", is_error: answers[id]?.failed ?? false }));
    if (chat) void toasts.attempt(async () => {
      await api.submitToolResults(chat.id, results);
      for (const { id } of calls) unsaved.clear(`answer:${id}`);
    });
  };
  return html`<form class="card action" onSubmit=${submit} aria-label="The reply needs you">
    <p>${icon("tool")} <strong>The reply needs you.</strong>${deadline_at ? ` Until ${clockTime(deadline_at)}.` : ""}</p>
    ${calls.map((call) => html`<fieldset key=${call.id}>
      <legend>${call.name}</legend>
      ${call.arguments && call.arguments !== "{}" && html`<pre tabindex="0" dir="ltr">${pretty(call.arguments)}</pre>`}
      <textarea rows="2" aria-label=${`Result of ${call.name}`} placeholder="Result" value=${answers[call.id]?.text ?? ""} onInput=${(/** @type {On} */ { currentTarget: target }) => set(call.id, { text: target.value })}></textarea>
      <label><input type="checkbox" checked=${answers[call.id]?.failed ?? false} onChange=${(/** @type {On} */ { currentTarget: target }) => set(call.id, { failed: target.checked })} /> It failed</label>
    </fieldset>`)}
    <div class="buttons"><button type="submit" class="primary">Send ${calls.length > 1 ? "results" : "result"}</button></div>
  </form>`;
}
