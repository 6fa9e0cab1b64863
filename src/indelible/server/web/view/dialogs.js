// The dialogs: rename, system prompt, share, settings, keyboard help.

import { html, useEffect, useState } from "./html.js";
import { CopyButton } from "./codeblock.js";
import { DebugDrawer } from "./debugdrawer.js";
import { Modal, useKept } from "./modal.js";
import { Palette } from "./palette.js";
import { LogIn } from "./session.js";

/** @param {{c: import("./controller.js").Controller, chat: any}} props */
function Rename({ c, chat }) {
  const dialog = { kind: "rename", chat };
  const title = useKept({ c, name: `title:${chat.id}`, stored: chat.title ?? "", dialog, what: "title" });
  const save = async (/** @type {Event} */ event) => {
    event.preventDefault();
    c.show(null);
    if (await c.chats.update(chat.id, { title: title.text.trim() || null })) title.forget();
    else if (!c.dialog) c.show(dialog); // what was written stays
  };
  return html`<${Modal} c=${c} label="Rename chat" onLeave=${title.leave}><form onSubmit=${save}>
    <input aria-label="Title" value=${title.text} maxlength="200" onInput=${(/** @type {any} */ { target }) => title.type(target.value)} />
    ${title.note}
    <div class="buttons"><button type="submit" class="primary">Rename</button></div>
  </form></${Modal}>`;
}

/** @param {{c: import("./controller.js").Controller, chat: any}} props */
function SystemPrompt({ c, chat }) {
  const dialog = { kind: "system", chat };
  const [stored, setStored] = useState(/** @type {string | null} */ (chat ? null : c.newChat.system));
  const prompt = useKept({ c, name: `system:${chat?.id ?? "new"}`, stored, dialog, what: "system prompt" });
  useEffect(() => {
    if (chat) void c.attempt(async () => setStored((await c.api.getChat(chat.id)).system ?? "")); // unknown: it cannot be saved
  }, []);
  const save = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (stored === null) return;
    const text = prompt.text.trim();
    c.show(null);
    if (!chat) {
      prompt.forget();
      c.newChat.system = text;
    } else if (await c.chats.update(chat.id, { system: text || null })) {
      prompt.forget();
      c.toast("System prompt saved. It applies from the next reply on.");
    } else if (!c.dialog) c.show(dialog); // what was written stays
  };
  return html`<${Modal} c=${c} label="System prompt" onLeave=${prompt.leave}><form onSubmit=${save}>
    <p class="faint">Instructions that the model gets before the conversation.</p>
    <textarea aria-label="System prompt" rows="8" value=${prompt.text} placeholder=${stored === null ? "Loading…" : "You are a helpful assistant."}
      onInput=${(/** @type {any} */ { target }) => prompt.type(target.value)}></textarea>
    ${prompt.note}
    <div class="buttons"><button type="submit" class="primary" disabled=${stored === null}>Save</button></div>
  </form></${Modal}>`;
}

/** @param {{c: import("./controller.js").Controller, chat: any}} props */
function Share({ c, chat }) {
  const [shares, setShares] = useState(/** @type {any[]} */ ([]));
  const [made, setMade] = useState("");
  const load = () => void c.attempt(async () => setShares((await c.api.listShares(chat.id)).items ?? []));
  useEffect(load, []);
  const [isBusy, setBusy] = useState(false);
  const create = async () => {
    setBusy(true); // a second click makes no second link
    await c.attempt(async () => setMade(new URL(`../..${(await c.api.createShare(chat.id)).url}`, import.meta.url).href));
    setBusy(false);
    load();
  };
  return html`<${Modal} c=${c} label="Share chat">
    <p class="faint">Anyone with the link can read this conversation as it is now, with thinking, tool calls and files, and what is added to it later. They cannot see
      other versions of messages (what you edited or regenerated), the queue, the system prompt or your drafts, and they cannot write.</p>
    ${made && html`<div class="copied"><input readonly aria-label="Link" value=${made} onFocus=${(/** @type {any} */ { target }) => target.select()} /><${CopyButton} text=${made} label="Copy link" /></div><p class="faint">The link is shown only once.</p>`}
    <div class="buttons"><button type="button" class="primary" disabled=${isBusy} onClick=${create}>Create a link</button></div>
    ${shares.length > 0 && html`<ul class="rows">${shares.map((share) => html`<li key=${share.id}><span>${share.user ?? "Link"}, since ${new Date(share.created_at).toLocaleDateString()}</span>
      <button type="button" class="danger" onClick=${() => void c.attempt(() => c.api.deleteShare(chat.id, share.id)).then(load)}>Revoke</button></li>`)}</ul>`}
  </${Modal}>`;
}

/** @param {{name: string, label: string, value: any, options: [any, string][], onChoose: (value: any) => void}} props */
function Choice({ name, label, value, options, onChoose }) {
  return html`<fieldset class="choice"><legend>${label}</legend>${options.map(([option, text]) => html`<label>
    <input type="radio" name=${name} checked=${value === option} onChange=${() => onChoose(option)} /> ${text}</label>`)}</fieldset>`;
}

/** @param {{c: import("./controller.js").Controller}} props */
function Settings({ c }) {
  const { preferences } = c;
  const notify = async (/** @type {boolean} */ on) => {
    if (on && "Notification" in globalThis) await Notification.requestPermission();
    preferences.set({ notify: on });
  };
  const model = c.newChat.model ?? c.models.find((one) => one.default)?.id;
  return html`<${Modal} c=${c} label="Settings">
    <${Choice} name="theme" label="Theme" value=${preferences.theme} options=${[["system", "Like the system"], ["light", "Light"], ["dark", "Dark"]]} onChoose=${(/** @type {string} */ theme) => preferences.set({ theme })} />
    <${Choice} name="send-key" label="Send with" value=${preferences.sendKey} options=${[["enter", "Enter"], ["ctrl", "Ctrl+Enter"]]} onChoose=${(/** @type {string} */ sendKey) => preferences.set({ sendKey })} />
    <fieldset class="choice"><legend>Notifications</legend><label><input type="checkbox" checked=${preferences.notify} onChange=${(/** @type {any} */ { target }) => void notify(target.checked)} /> Tell me when a reply ends in the background</label></fieldset>
    <fieldset class="choice"><legend>Model</legend><p>${model ?? "–"} <span class="faint">Choose a model per chat below the message field.</span></p></fieldset>
    <fieldset class="choice"><legend>System prompt</legend><button type="button" onClick=${() => c.show({ kind: "system", chat: c.chat && { id: c.chat.id } })}>${c.chat ? "Of this chat…" : "Of the next chat…"}</button></fieldset>
  </${Modal}>`;
}

const KEYS = [
  ["Enter", "Send (a new line on a phone)"], ["Shift+Enter", "New line"], ["Ctrl+Enter", "Send; during a reply: steer it"], ["Esc", "Stop the reply, close a dialog"],
  ["Ctrl+K", "Command palette, search"], ["Ctrl+Shift+O", "New chat"], ["Ctrl+Shift+S", "Search the chats"], ["Ctrl+Shift+L", "Focus the message field"], ["?", "This help, outside a field"],
];

/** @param {{c: import("./controller.js").Controller}} props */
function Help({ c }) {
  return html`<${Modal} c=${c} label="Keyboard shortcuts"><dl class="keys">${KEYS.map(([key, does]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${does}</dd></div>`)}</dl></${Modal}>`;
}

/** @type {Record<string, any>} */
const KINDS = { rename: Rename, system: SystemPrompt, share: Share, settings: Settings, help: Help, palette: Palette, debug: DebugDrawer, login: LogIn };

/** @param {{c: import("./controller.js").Controller}} props */
export function Dialogs({ c }) {
  if (!c.dialog) return null;
  const { kind, ...props } = c.dialog;
  return html`<${KINDS[kind]} key=${kind} c=${c} ...${props} />`;
}
