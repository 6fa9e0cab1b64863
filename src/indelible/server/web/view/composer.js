// Where the user writes. It never blocks: while a reply runs, a message is queued; while the server is away, it waits.

import { size } from "../core/formatting.js";
import { html, useLayoutEffect, useRef } from "./html.js";
import { icon } from "./icons.js";
import { Menu } from "./menu.js";
import { isPhone } from "./preferences.js";
import { Queue } from "./queue.js";

/** @param {{c: import("./controller.js").Controller}} props */
export function Composer({ c }) {
  const { chat } = c;
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const canStop = chat && (chat.busy || chat.status === "requires_action");
  const hasText = Boolean(c.draft.trim()) || c.files.items.length > 0;
  const canAttach = c.files.isAvailable;

  useLayoutEffect(() => {
    const area = field.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
  }, [c.draft]);
  useLayoutEffect(() => { if (!isPhone()) field.current?.focus(); }, [c.arrivals]);

  const key = (/** @type {KeyboardEvent} */ event) => {
    if (!c.preferences.sends(event)) return;
    event.preventDefault();
    c.send((event.ctrlKey || event.metaKey) && chat?.busy ? "steer" : "queue");
  };
  const attach = (/** @type {any} */ event, /** @type {FileList | undefined} */ files) => {
    if (!files?.length || !canAttach) return;
    event.preventDefault();
    c.files.add(files);
  };

  return html`<form id="composer" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); c.send(); }}
      onDragOver=${(/** @type {Event} */ event) => canAttach && event.preventDefault()} onDrop=${(/** @type {DragEvent} */ event) => attach(event, event.dataTransfer?.files)}>
    <${Queue} c=${c} />
    <div class="box">
      ${c.files.items.length > 0 && html`<ul class="files" aria-label="Attachments">${c.files.items.map((file) => html`<li key=${file.key} class=${file.state}>
        ${icon("file")}<span dir="auto">${file.name}</span><small>${file.state === "uploading" ? "Uploading…" : file.state === "failed" ? file.error : size(file.size)}</small>
        ${file.state === "failed" && !file.isRefused && html`<button type="button" class="link" onClick=${() => c.files.upload(file)}>Retry</button>`}
        <button type="button" class="quiet small" aria-label=${`Remove ${file.name}`} onClick=${() => c.files.remove(file.key)}>${icon("close")}</button></li>`)}</ul>`}
      <textarea id="message" ref=${field} rows="1" placeholder=${c.isReadOnly ? "This chat is read-only." : "Message Indelible…"} aria-label="Message" value=${c.draft} dir="auto"
        disabled=${c.isReadOnly} enterkeyhint=${isPhone() ? "enter" : "send"} onKeyDown=${key} onInput=${(/** @type {any} */ { target }) => c.type(target.value)}
        onPaste=${(/** @type {ClipboardEvent} */ event) => attach(event, event.clipboardData?.files)}></textarea>
      <div class="buttons">
        ${canAttach && html`<label class="quiet button" title="Attach files">${icon("attach")}<span class="hidden">Attach files</span>
          <input type="file" multiple class="hidden" onChange=${(/** @type {any} */ { target }) => { c.files.add([...target.files]); target.value = ""; }} /></label>`}
        <${ModelPicker} c=${c} />
        <span class="grow"></span>
        ${canStop && html`<button id="stop" type="button" disabled=${chat.status === "interrupting"} onClick=${() => c.stop()} title="Stop (Esc)">${icon("stop")} Stop</button>`}
        ${chat?.busy && hasText && html`<${Menu} label="How to send" up className="quiet" button=${icon("up")} entries=${[
          { text: "Queue: send after this reply", act: () => c.send("queue") },
          { text: "Steer: join the running reply", act: () => c.send("steer") },
          { text: "Interrupt: stop it and send", act: () => c.send("interrupt") },
        ]} />`}
        <button id="send" type="submit" class="primary" disabled=${!hasText || c.isReadOnly} title=${chat?.busy ? "Queue" : "Send"}>${icon("send")} <span>${chat?.busy ? "Queue" : "Send"}</span></button>
      </div>
    </div>
  </form>`;
}

/** @param {{c: import("./controller.js").Controller}} props */
function ModelPicker({ c }) {
  const { chat } = c;
  const standard = c.models.find((one) => one.default)?.id;
  const current = (chat ? chat.details.model : c.newChat.model) ?? standard;
  if (!current || c.isReadOnly) return null;
  const choose = (/** @type {string} */ model) => {
    if (chat) void c.chats.update(chat.id, { model });
    else { c.newChat.model = model; c.changed(); }
  };
  return html`<${Menu} label=${`Model: ${current}`} up className="quiet model" button=${html`<span>${current}</span>${icon("chevron")}`}
    entries=${c.models.map(({ id }) => ({ text: id, checked: id === current, act: () => choose(id) }))} />`;
}
