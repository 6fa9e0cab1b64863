// What waits for the running reply: chips that can be edited, moved, sent now or removed.

import { plainText } from "../core/thread.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { icon } from "./icons.js";
import { api, conversation, delivery, outbox, preferences, state, toasts, unsaved, writing } from "./page.js";

/** @import { On } from "./html.js" */
/** @import { Queued } from "../core/shapes.js" */

const SHOWN = 3;

/** @typedef {{chat: string, id: string, text: string, before: string, isNew?: boolean}} Editing  a queued message that is being changed; `isNew`: its editor takes the focus */

/** @param {{editing: Editing, setEditing: (next: Editing | null) => void, save: (changed: Editing) => void}} props */
function Editor({ editing, setEditing, save }) {
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useLayoutEffect(() => {
    if (!editing.isNew) return; // it comes back with what was written; the user may be typing elsewhere
    editing.isNew = false;
    field.current?.focus();
    field.current?.setSelectionRange(editing.text.length, editing.text.length);
  }, []);
  const end = (/** @type {() => void} */ act) => {
    act();
    document.getElementById("message")?.focus();
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (preferences.sends(event)) { event.preventDefault(); end(() => save(editing)); }
    if (event.key === "Escape" && !event.isComposing) { event.stopPropagation(); end(cancel); }
  };
  const cancel = () => {
    setEditing(null);
    unsaved.clear(`queued:${editing.id}`);
    if (editing.text !== editing.before) toasts.show("Your changes were discarded.", () => edit({ ...editing, isNew: true }));
  };
  const edit = (/** @type {Editing} */ changed) => {
    setEditing(changed);
    unsaved.set(`queued:${changed.id}`, changed.text === changed.before ? "" : changed.text); // for the case of a reload
  };
  return html`<textarea ref=${field} aria-label="Edit queued message" rows=${Math.min(6, editing.text.split("\n").length)} value=${editing.text} dir="auto" onKeyDown=${key}
      onInput=${(/** @type {On<HTMLTextAreaElement>} */ { currentTarget: target }) => edit({ ...editing, text: target.value })}></textarea>
    <button type="button" class="quiet small" aria-label="Save" title="Save" onClick=${() => end(() => save(editing))}>${icon("check")}</button>`;
}

export function Queue() {
  const { chat } = state;
  const [isWhole, setWhole] = useState(false);
  const [editing, setEditing] = useState(/** @type {Editing | null} */ (null));
  const queue = chat?.queue ?? [];
  useEffect(() => {
    if (!editing || editing.chat !== chat?.id || !chat.loaded || queue.some(({ id }) => id === editing.id)) return;
    setEditing(null); // its turn has come, or another tab has removed it
    unsaved.clear(`queued:${editing.id}`);
    if (document.activeElement === document.body) document.getElementById("message")?.focus();
    if (editing.text === editing.before) return;
    writing.keep(editing.chat, editing.text, "The message is no longer queued. ");
  });
  const putBack = useRef(/** @type {{key: string, at: number}[]} */ ([])); // removed, and sent again: to their old places
  useEffect(() => {
    putBack.current = putBack.current.filter(({ key, at }) => {
      const id = delivery.pairs.get(key);
      if (!chat || !queue.some((one) => one.id === id)) return true;
      const ids = queue.map((one) => one.id).filter((one) => one !== id);
      ids.splice(at, 0, /** @type {string} */ (id));
      if (at < queue.length - 1) void api.orderQueue(chat.id, ids).catch(() => {}); // it is in the queue: its place matters less
      return false;
    });
  });
  const coming = chat?.busy ? conversation.pending : [];
  if (!chat || (!queue.length && !coming.length)) return html`<ol id="queue" aria-label="Queued messages"></ol>`;
  const isSteer = (/** @type {Queued} */ queued) => queued.if_busy === "steer";
  const inLine = queue.filter((queued) => !isSteer(queued)); // the others join the running reply
  const label = (/** @type {Queued} */ queued) => (isSteer(queued) ? "Joins the running reply" : `Queued · ${inLine.indexOf(queued) + 1} of ${inLine.length}`);
  const shown = isWhole ? queue : queue.slice(0, SHOWN);
  const act = (/** @type {() => Promise<unknown>} */ action) => void toasts.attempt(action);
  const move = (/** @type {number} */ at, /** @type {number} */ step) => {
    const ids = queue.map(({ id }) => id);
    [ids[at], ids[at + step]] = [ids[at + step], ids[at]];
    act(() => api.orderQueue(chat.id, ids));
  };
  const begin = (/** @type {Queued} */ queued) => {
    if (editing && editing.text !== editing.before) {
      unsaved.clear(`queued:${editing.id}`);
      writing.keep(editing.chat, editing.text);
    }
    const before = plainText(queued.blocks);
    setEditing({ chat: chat.id, id: queued.id, text: unsaved.get(`queued:${queued.id}`) || before, before, isNew: true });
  };
  const save = (/** @type {Editing} */ changed) => {
    const files = queue.find(({ id }) => id === changed.id)?.blocks.filter(({ type }) => type === "file") ?? [];
    const text = changed.text ? [{ type: "text", text: changed.text }] : [];
    setEditing(null);
    void toasts.attempt(() => api.editQueued(chat.id, changed.id, files.length ? { content: [...text, ...files] } : { text: changed.text }))
      .then((done) => {
        if (done === undefined) setEditing((other) => other ?? changed); // what was written stays
        else unsaved.clear(`queued:${changed.id}`);
      });
  };
  const remove = async (/** @type {Queued} */ queued, /** @type {number} */ at) => {
    const done = await toasts.attempt(() => api.deleteQueued(chat.id, queued.id).then(() => true));
    if (!done) return;
    toasts.show("Removed from the queue.", () => {
      const { blocks, if_busy, model } = queued;
      const { key } = outbox.add(chat.id, plainText(blocks), { content: blocks, if_busy: if_busy === "steer" ? "steer" : "queue", ...(model ? { model } : {}) });
      putBack.current.push({ key, at });
    });
  };
  return html`<ol id="queue" aria-label="Queued messages">
    ${shown.map((queued, at) => html`<li key=${queued.id} class=${isSteer(queued) ? "steer" : undefined}>
      ${editing?.id === queued.id ? html`<${Editor} editing=${editing} setEditing=${setEditing} save=${save} />`
      : html`${isSteer(queued) && icon("steer")}<span dir="auto">${label(queued)}: ${plainText(queued.blocks) || "file"}</span>
        <button type="button" class="quiet small" aria-label="Edit queued message" title="Edit" onClick=${() => begin(queued)}>${icon("edit")}</button>
        ${at > 0 && isSteer(queued) === isSteer(shown[at - 1]) && html`<button type="button" class="quiet small" aria-label="Move up" title="Move up" onClick=${() => move(at, -1)}>${icon("up")}</button>`}
        <button type="button" class="quiet small" aria-label="Send now" title="Send now: stops the running reply" onClick=${() => act(() => api.promoteQueued(chat.id, queued.id))}>${icon("now")}</button>
        <button type="button" class="quiet small" aria-label="Remove from queue" title="Remove" onClick=${() => void remove(queued, at)}>${icon("close")}</button>`}
    </li>`)}
    ${queue.length > SHOWN && html`<li class="rest"><button type="button" class="link" onClick=${() => setWhole(!isWhole)}>${isWhole ? "Show less" : `+ ${queue.length - SHOWN} more`}</button></li>`}
    ${coming.map((entry) => html`<li key=${entry.key} class="coming"><span dir="auto">${entry.text || "file"}</span>
      ${entry.state === "waiting" || entry.state === "refused" ? html`<small role="alert">Not sent: ${entry.error}</small>
        <button type="button" class="link" onClick=${() => outbox.retry(entry.key)}>Retry</button>` : html`<small>Sending…</small>`}
      ${entry.state !== "sent" && html`<button type="button" class="quiet small" aria-label="Edit unsent message" onClick=${() => writing.takeBack(entry.key)}>${icon("edit")}</button>`}</li>`)}
  </ol>`;
}
