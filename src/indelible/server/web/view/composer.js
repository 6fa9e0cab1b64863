// Where the user writes. It never blocks: while a reply runs, a message is queued; while the server is away, it waits.

import { size } from "../core/formatting.js";
import { html, useLayoutEffect, useRef } from "./html.js";
import { icon } from "./icons.js";
import { Menu } from "./menu.js";
import { chats, conversation, files, preferences, state, store, writing } from "./page.js";
import { isPhone } from "./preferences.js";
import { Queue } from "./queue.js";
import { currentModel, isReadOnly } from "./state.js";

/** @import { On } from "./html.js" */

export function Composer() {
  const { chat } = state;
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const canStop = chat && (chat.busy || chat.status === "requires_action");
  const hasText = Boolean(state.draft.trim()) || files.items.length > 0;
  const canAttach = files.isAvailable;

  useLayoutEffect(() => {
    const area = field.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
  }, [state.draft]);
  useLayoutEffect(() => { if (!isPhone()) field.current?.focus(); }, [state.arrivals]);

  const key = (/** @type {KeyboardEvent} */ event) => {
    if (!preferences.sends(event)) return;
    event.preventDefault();
    writing.send((event.ctrlKey || event.metaKey) && chat?.busy ? "steer" : "queue");
  };
  const attach = (/** @type {Event} */ event, /** @type {FileList | undefined} */ given) => {
    if (!given?.length || !canAttach) return;
    event.preventDefault();
    files.add(given);
  };

  return html`<form id="composer" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); writing.send(); }}
      onDragOver=${(/** @type {Event} */ event) => canAttach && event.preventDefault()} onDrop=${(/** @type {DragEvent} */ event) => attach(event, event.dataTransfer?.files)}>
    <${Queue} />
    <div class="box">
      ${files.items.length > 0 && html`<ul class="files" aria-label="Attachments">${files.items.map((file) => html`<li key=${file.key} class=${file.state}>
        ${icon("file")}<span dir="auto">${file.name}</span><small>${file.state === "uploading" ? "Uploading…" : file.state === "failed" ? file.error : size(file.size)}</small>
        ${file.state === "failed" && !file.isRefused && html`<button type="button" class="link" onClick=${() => files.upload(file)}>Retry</button>`}
        <button type="button" class="quiet small" aria-label=${`Remove ${file.name}`} onClick=${() => files.remove(file.key)}>${icon("close")}</button></li>`)}</ul>`}
      <textarea id="message" ref=${field} rows="1" placeholder=${isReadOnly(state) ? "This chat is read-only." : "Message Indelible…"} aria-label="Message" value=${state.draft} dir="auto"
        disabled=${isReadOnly(state)} enterkeyhint=${isPhone() ? "enter" : "send"} onKeyDown=${key} onInput=${(/** @type {On} */ { currentTarget: target }) => writing.type(target.value)}
        onPaste=${(/** @type {ClipboardEvent} */ event) => attach(event, event.clipboardData?.files)}></textarea>
      <div class="buttons">
        ${canAttach && html`<label class="quiet button" title="Attach files">${icon("attach")}<span class="hidden">Attach files</span>
          <input type="file" multiple class="hidden" onChange=${(/** @type {On} */ { currentTarget: target }) => { files.add([...(target.files ?? [])]); target.value = ""; }} /></label>`}
        <${ModelPicker} />
        <span class="grow"></span>
        ${canStop && html`<button id="stop" type="button" disabled=${chat.status === "interrupting"} onClick=${() => conversation.stop()} title="Stop (Esc)">${icon("stop")} Stop</button>`}
        ${chat?.busy && hasText && html`<${Menu} label="How to send" up className="quiet" button=${icon("up")} entries=${[
          { text: "Queue: send after this reply", act: () => writing.send("queue") },
          { text: "Steer: join the running reply", act: () => writing.send("steer") },
          { text: "Interrupt: stop it and send", act: () => writing.send("interrupt") },
        ]} />`}
        <button id="send" type="submit" class="primary" disabled=${!hasText || isReadOnly(state)} title=${chat?.busy ? "Queue" : "Send"}>${icon("send")} <span>${chat?.busy ? "Queue" : "Send"}</span></button>
      </div>
    </div>
  </form>`;
}

function ModelPicker() {
  const { chat } = state;
  const current = currentModel(state);
  if (!current || isReadOnly(state)) return null;
  const choose = (/** @type {string} */ model) => {
    if (chat) void chats.update(chat.id, { model });
    else store.set({ nextModel: model });
  };
  return html`<${Menu} label=${`Model: ${current}`} up className="quiet model" button=${html`<span>${current}</span>${icon("chevron")}`}
    entries=${state.models.map(({ id }) => ({ text: id, checked: id === current, act: () => choose(id) }))} />`;
}
