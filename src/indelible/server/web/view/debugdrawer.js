// What happened behind a reply: attempts as a waterfall, retries, and the recorded requests and responses.

import { duration, elapsed, tokens } from "../core/formatting.js";
import { Modal } from "./modal.js";
import { api, chats, toasts } from "./page.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";

/** @import { Attempt, Run as RecordedRun, WholeRun } from "../core/shapes.js" */
/** @import { Item } from "../core/thread.js" */
/** @import { On } from "./html.js" */

/** A bar on the time axis of its turn. @param {{from: number, to: number, span: [number, number], className: string, title: string}} props */
function Bar({ from, to, span: [start, end], className, title }) {
  const bar = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => {
    const width = Math.max(1, end - start);
    if (!bar.current) return;
    bar.current.style.marginInlineStart = `${(100 * (from - start)) / width}%`;
    bar.current.style.width = `${Math.max(1, (100 * (to - from)) / width)}%`;
  });
  return html`<span class="track"><span ref=${bar} class=${`bar ${className}`} title=${title}></span></span>`;
}

/** @param {Attempt[]} attempts */
function byTurn(attempts) {
  /** @type {Map<string, Attempt[]>} */
  const turns = new Map();
  for (const attempt of attempts) turns.set(attempt.turn_id, [attempt, ...(turns.get(attempt.turn_id) ?? [])]);
  return [...turns];
}

/** @param {{chat: {id: string}, item?: Item}} props */
export function DebugDrawer({ chat, item }) {
  const [attempts, setAttempts] = useState(/** @type {Attempt[] | null} */ (null));
  const [isBroken, setBroken] = useState(false);
  const [runs, setRuns] = useState(/** @type {RecordedRun[]} */ ([]));
  const load = () => void toasts.attempt(async () => {
    setAttempts((await api.listAttempts(chat.id)).items);
    setRuns((await api.listRuns(chat.id)).items);
    return true;
  }).then((done) => setBroken(!done));
  useEffect(load, []);
  const started = item?.messages.find((one) => one.timings)?.timings?.started_at;
  const own = started && attempts?.find((attempt) => attempt.started_at === started || (attempt.started_at <= started && (attempt.ended_at ?? "9") >= started))?.turn_id;
  const turns = byTurn((attempts ?? []).filter((attempt) => !own || attempt.turn_id === own));
  return html`<${Modal} label="Attempts and requests" className="drawer">
    <p class="faint">${own ? "Every try at this reply, in order." : "Every try at every reply of this chat, newest reply first."} <button type="button" class="link" onClick=${load}>Refresh</button></p>
    ${attempts === null && html`<p>${isBroken ? "The attempts could not be loaded." : "Loading…"}</p>`}
    ${turns.map(([turn, tries]) => html`<${Turn} key=${turn} chat=${chat} tries=${tries} runs=${runs.filter((run) => run.turn_id === turn)} />`)}
    ${attempts?.length === 0 && html`<p>No attempts yet.</p>`}
  </${Modal}>`;
}

/** @param {{chat: {id: string}, tries: Attempt[], runs: RecordedRun[]}} props */
function Turn({ chat, tries, runs }) {
  const now = Date.now();
  const times = tries.map(({ started_at, ended_at }) => [Date.parse(started_at), ended_at ? Date.parse(ended_at) : now]);
  /** @type {[number, number]} */
  const span = [Math.min(...times.map(([from]) => from)), Math.max(...times.map(([, to]) => to))];
  return html`<section class="turn"><h3>${new Date(tries[0].started_at).toLocaleString()} <small>${duration(span[1] - span[0])}</small></h3>
    <table><thead><tr><th scope="col">Step</th><th scope="col">Model</th><th scope="col">Outcome</th><th scope="col">Time</th><th scope="col" class="axis">Waterfall</th></tr></thead>
    <tbody>${tries.map((attempt, at) => html`<tr key=${attempt.id}>
      <td>${attempt.step}.${attempt.number}</td><td>${attempt.model}</td>
      <td>${attempt.outcome ?? "running"}${attempt.error && html`<br /><small class="alarm">${attempt.error.message ?? attempt.error.kind ?? String(attempt.error)}</small>`}${attempt.usage?.output_tokens ? html`<br /><small>${tokens(attempt.usage.output_tokens)}</small>` : ""}</td>
      <td>${duration(times[at][1] - times[at][0])}</td>
      <td class="axis"><${Bar} from=${times[at][0]} to=${times[at][1]} span=${span} className=${attempt.error ? "failed" : attempt.outcome ?? "running"} title=${attempt.outcome ?? "running"} /></td></tr>`)}</tbody></table>
    ${runs.map((run) => html`<${Run} key=${run.id} chat=${chat} run=${run} />`)}
    ${runs.length === 0 && html`<p class="faint">Requests were not recorded. <button type="button" class="link" onClick=${() => void chats.update(chat.id, { debug: "all" }).then((done) => done && toasts.show("Requests are recorded from the next reply on."))}>Record the next ones</button></p>`}
  </section>`;
}

/** @param {{chat: {id: string}, run: RecordedRun}} props */
function Run({ chat, run }) {
  const [whole, setWhole] = useState(/** @type {WholeRun | null} */ (null));
  const open = (/** @type {On<HTMLDetailsElement>} */ { currentTarget: target }) => { if (target.open && !whole) void toasts.attempt(async () => setWhole(await api.getRun(chat.id, run.id))); };
  return html`<details class="run" onToggle=${open}><summary>${run.kind} · ${run.status} · ${run.attempt_count} ${run.attempt_count === 1 ? "request" : "requests"}</summary>
    ${whole?.steps.flatMap((step) => step.attempts).map((one) => html`<div class="exchange">
      <p><code>${one.method} ${one.url}</code> → <strong>${one.status_code ?? "no response"}</strong> ${elapsed(one.started_at, one.ended_at) !== null && duration(/** @type {number} */ (elapsed(one.started_at, one.ended_at)))}${one.head_at ? `, first byte after ${duration(/** @type {number} */ (elapsed(one.started_at, one.head_at)))}` : ""}</p>
      <details><summary>Request</summary><pre tabindex="0" dir="ltr">${JSON.stringify(one.request_headers, null, 2)}${"\n\n"}${one.request_body}</pre></details>
      <details><summary>Response</summary><pre tabindex="0" dir="ltr">${JSON.stringify(one.response_headers, null, 2)}${"\n\n"}${one.response_body}</pre></details>
    </div>`)}
  </details>`;
}
