// The reply needs the user: the calls of tools that run outside, each with a field for its result.

import { clockTime } from "../core/formatting.js";
import { html, useState } from "./html.js";
import { icon } from "./icons.js";

/** @param {string | undefined} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text || "{}"), null, 2);
  } catch {
    return text ?? "";
  }
}

/** @param {{c: import("./controller.js").Controller}} props */
export function Action({ c }) {
  const { calls, deadline_at } = c.chat?.action ?? { calls: [] };
  const kept = Object.fromEntries(calls.map((/** @type {any} */ { id }) => [id, { text: c.unsaved.get(`answer:${id}`), failed: false }]));
  const [answers, setAnswers] = useState(/** @type {Record<string, {text: string, failed: boolean}>} */ (kept));
  const set = (/** @type {string} */ id, /** @type {any} */ change) => {
    setAnswers({ ...answers, [id]: { ...answers[id], ...change } });
    if ("text" in change) c.unsaved.set(`answer:${id}`, change.text);
  };
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const results = calls.map((/** @type {any} */ { id }) => ({ tool_call_id: id, output: answers[id]?.text ?? "", is_error: answers[id]?.failed ?? false }));
    void c.attempt(async () => {
      await c.api.submitToolResults(/** @type {any} */ (c.chat).id, results);
      for (const { id } of calls) c.unsaved.clear(`answer:${id}`);
    });
  };
  return html`<form class="card action" onSubmit=${submit} aria-label="The reply needs you">
    <p>${icon("tool")} <strong>The reply needs you.</strong>${deadline_at ? ` Until ${clockTime(deadline_at)}.` : ""}</p>
    ${calls.map((/** @type {any} */ call) => html`<fieldset key=${call.id}>
      <legend>${call.name}</legend>
      ${call.arguments && call.arguments !== "{}" && html`<pre tabindex="0" dir="ltr">${pretty(call.arguments)}</pre>`}
      <textarea rows="2" aria-label=${`Result of ${call.name}`} placeholder="Result" value=${answers[call.id]?.text ?? ""} onInput=${(/** @type {any} */ { target }) => set(call.id, { text: target.value })}></textarea>
      <label><input type="checkbox" checked=${answers[call.id]?.failed ?? false} onChange=${(/** @type {any} */ { target }) => set(call.id, { failed: target.checked })} /> It failed</label>
    </fieldset>`)}
    <div class="buttons"><button type="submit" class="primary">Send ${calls.length > 1 ? "results" : "result"}</button></div>
  </form>`;
}
