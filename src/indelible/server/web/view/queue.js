// What waits for the running reply: chips that can be edited, moved, sent now or removed.

import { plainText } from "../core/thread.js";
import { html, useState } from "./html.js";
import { icon } from "./icons.js";

const SHOWN = 3;

/** @param {{c: import("./controller.js").Controller}} props */
export function Queue({ c }) {
  const { chat } = c;
  const [isWhole, setWhole] = useState(false);
  const [editing, setEditing] = useState(/** @type {{id: string, text: string} | null} */ (null));
  const queue = chat?.queue ?? [];
  const coming = chat?.busy ? c.pending : [];
  if (!chat || (!queue.length && !coming.length)) return html`<ol id="queue" aria-label="Queued messages"></ol>`;
  const shown = isWhole ? queue : queue.slice(0, SHOWN);
  const act = (/** @type {() => Promise<any>} */ action) => void c.attempt(action);
  const move = (/** @type {number} */ at, /** @type {number} */ step) => {
    const ids = queue.map(({ id }) => id);
    [ids[at], ids[at + step]] = [ids[at + step], ids[at]];
    act(() => c.api.orderQueue(chat.id, ids));
  };
  const save = () => {
    const files = queue.find(({ id }) => id === editing?.id)?.blocks.filter((/** @type {any} */ { type }) => type === "file") ?? [];
    const text = editing?.text ? [{ type: "text", text: editing.text }] : [];
    if (editing) act(() => c.api.editQueued(chat.id, editing.id, files.length ? { content: [...text, ...files] } : { text: editing.text }));
    setEditing(null);
  };
  return html`<ol id="queue" aria-label="Queued messages">
    ${shown.map((queued, at) => html`<li key=${queued.id}>
      ${editing?.id === queued.id ? html`<textarea aria-label="Edit queued message" rows=${Math.min(6, (editing?.text ?? "").split("\n").length)} value=${editing?.text} onInput=${(/** @type {any} */ { target }) => setEditing({ id: queued.id, text: target.value })}
          onKeyDown=${(/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); save(); } if (event.key === "Escape") { event.stopPropagation(); setEditing(null); } }}></textarea>
        <button type="button" class="quiet small" aria-label="Save" onClick=${save}>${icon("check")}</button>`
      : html`<span dir="auto">Queued · ${at + 1} of ${queue.length}: ${plainText(queued.blocks) || "file"}</span>
        <button type="button" class="quiet small" aria-label="Edit queued message" title="Edit" onClick=${() => setEditing({ id: queued.id, text: plainText(queued.blocks) })}>${icon("edit")}</button>
        ${at > 0 && html`<button type="button" class="quiet small" aria-label="Move up" title="Move up" onClick=${() => move(at, -1)}>${icon("up")}</button>`}
        <button type="button" class="quiet small" aria-label="Send now" title="Send now: stops the running reply" onClick=${() => act(() => c.api.promoteQueued(chat.id, queued.id))}>${icon("now")}</button>
        <button type="button" class="quiet small" aria-label="Remove from queue" title="Remove" onClick=${() => act(() => c.api.deleteQueued(chat.id, queued.id))}>${icon("close")}</button>`}
    </li>`)}
    ${queue.length > SHOWN && html`<li class="rest"><button type="button" class="link" onClick=${() => setWhole(!isWhole)}>${isWhole ? "Show less" : `+ ${queue.length - SHOWN} more`}</button></li>`}
    ${coming.map((entry) => html`<li key=${entry.key} class="coming"><span dir="auto">${entry.state === "waiting" || entry.state === "refused" ? `Not sent: ${entry.error} ` : "Sending… "}${entry.text}</span>
      ${entry.state !== "sent" && html`<button type="button" class="quiet small" aria-label="Edit unsent message" onClick=${() => c.editPending(entry.key)}>${icon("edit")}</button>`}</li>`)}
  </ol>`;
}
