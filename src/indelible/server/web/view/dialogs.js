// The dialogs: rename, system prompt, share, settings, keyboard help.

import { html, useEffect, useState } from "./html.js";
import { CopyButton } from "./codeblock.js";
import { DebugDrawer } from "./debugdrawer.js";
import { Modal, useKept } from "./modal.js";
import { Palette } from "./palette.js";
import { api, chats, newChat, preferences, show, state, toasts } from "./page.js";
import { LogIn } from "./sessionbar.js";
import { standardModel } from "./state.js";

/** @import { ChatRef, Share as SharedWith } from "../core/shapes.js" */
/** @import { Child, On } from "./html.js" */
/** @import { Dialog } from "./state.js" */

/** @param {{chat: ChatRef}} props */
function Rename({ chat }) {
  /** @type {Dialog} */
  const dialog = { kind: "rename", chat };
  const title = useKept({ name: `title:${chat.id}`, stored: chat.title ?? "", dialog, what: "title" });
  const save = async (/** @type {Event} */ event) => {
    event.preventDefault();
    show(null);
    if (await chats.update(chat.id, { title: title.text.trim() || null })) title.forget();
    else if (!state.dialog) show(dialog); // what was written stays
  };
  return html`<${Modal} label="Rename chat" onLeave=${title.leave}><form onSubmit=${save}>
    <input aria-label="Title" value=${title.text} maxlength="200" onInput=${(/** @type {On} */ { currentTarget: target }) => title.type(target.value)} />
    ${title.note}
    <div class="buttons"><button type="submit" class="primary">Rename</button></div>
  </form></${Modal}>`;
}

/** @param {{chat: {id: string} | null}} props */
function SystemPrompt({ chat }) {
  /** @type {Dialog} */
  const dialog = { kind: "system", chat };
  const [stored, setStored] = useState(/** @type {string | null} */ (chat ? null : newChat.system));
  const prompt = useKept({ name: `system:${chat?.id ?? "new"}`, stored, dialog, what: "system prompt" });
  useEffect(() => {
    if (chat) void toasts.attempt(async () => setStored((await api.getChat(chat.id)).system ?? "")); // unknown: it cannot be saved
  }, []);
  const save = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (stored === null) return;
    const text = prompt.text.trim();
    show(null);
    if (!chat) {
      prompt.forget();
      newChat.system = text;
    } else if (await chats.update(chat.id, { system: text || null })) {
      prompt.forget();
      toasts.show("System prompt saved. It applies from the next reply on.");
    } else if (!state.dialog) show(dialog); // what was written stays
  };
  return html`<${Modal} label="System prompt" onLeave=${prompt.leave}><form onSubmit=${save}>
    <p class="faint">Instructions that the model gets before the conversation.</p>
    <textarea aria-label="System prompt" rows="8" value=${prompt.text} placeholder=${stored === null ? "Loading…" : "You are a helpful assistant."}
      onInput=${(/** @type {On} */ { currentTarget: target }) => prompt.type(target.value)}></textarea>
    ${prompt.note}
    <div class="buttons"><button type="submit" class="primary" disabled=${stored === null}>Save</button></div>
  </form></${Modal}>`;
}

/** @param {{chat: ChatRef}} props */
function Share({ chat }) {
  const [shares, setShares] = useState(/** @type {SharedWith[]} */ ([]));
  const [made, setMade] = useState("");
  const load = () => void toasts.attempt(async () => setShares((await api.listShares(chat.id)).items ?? []));
  useEffect(load, []);
  const [isBusy, setBusy] = useState(false);
  const create = async () => {
    setBusy(true); // a second click makes no second link
    await toasts.attempt(async () => setMade(new URL(`../..${(await api.createShare(chat.id)).url}`, import.meta.url).href));
    setBusy(false);
    load();
  };
  return html`<${Modal} label="Share chat">
    <p class="faint">Anyone with the link can read this conversation as it is now, with thinking, tool calls and files, and what is added to it later. They cannot see
      other versions of messages (what you edited or regenerated), the queue, the system prompt or your drafts, and they cannot write.</p>
    ${made && html`<div class="copied"><input readonly aria-label="Link" value=${made} onFocus=${(/** @type {On} */ { currentTarget: target }) => target.select()} /><${CopyButton} text=${made} label="Copy link" /></div><p class="faint">The link is shown only once.</p>`}
    <div class="buttons"><button type="button" class="primary" disabled=${isBusy} onClick=${create}>Create a link</button></div>
    ${shares.length > 0 && html`<ul class="rows">${shares.map((share) => html`<li key=${share.id}><span>${share.user ?? "Link"}, since ${new Date(share.created_at).toLocaleDateString()}</span>
      <button type="button" class="danger" onClick=${() => void toasts.attempt(() => api.deleteShare(chat.id, share.id)).then(load)}>Revoke</button></li>`)}</ul>`}
  </${Modal}>`;
}

/** @param {{name: string, label: string, value: string, options: [string, string][], onChoose: (value: string) => void}} props */
function Choice({ name, label, value, options, onChoose }) {
  return html`<fieldset class="choice"><legend>${label}</legend>${options.map(([option, text]) => html`<label>
    <input type="radio" name=${name} checked=${value === option} onChange=${() => onChoose(option)} /> ${text}</label>`)}</fieldset>`;
}

function Settings() {
  const notify = async (/** @type {boolean} */ on) => {
    if (on && "Notification" in globalThis) await Notification.requestPermission();
    preferences.set({ notify: on });
  };
  const model = state.nextModel ?? standardModel(state);
  return html`<${Modal} label="Settings">
    <${Choice} name="theme" label="Theme" value=${preferences.theme} options=${[["system", "Like the system"], ["light", "Light"], ["dark", "Dark"]]} onChoose=${(/** @type {string} */ theme) => preferences.set({ theme })} />
    <${Choice} name="send-key" label="Send with" value=${preferences.sendKey} options=${[["enter", "Enter"], ["ctrl", "Ctrl+Enter"]]} onChoose=${(/** @type {string} */ sendKey) => preferences.set({ sendKey })} />
    <fieldset class="choice"><legend>Notifications</legend><label><input type="checkbox" checked=${preferences.notify} onChange=${(/** @type {On} */ { currentTarget: target }) => void notify(target.checked)} /> Tell me when a reply ends in the background</label></fieldset>
    <fieldset class="choice"><legend>Model</legend><p>${model ?? "–"} <span class="faint">Choose a model per chat below the message field.</span></p></fieldset>
    <fieldset class="choice"><legend>System prompt</legend><button type="button" onClick=${() => show({ kind: "system", chat: state.chat })}>${state.chat ? "Of this chat…" : "Of the next chat…"}</button></fieldset>
  </${Modal}>`;
}

const KEYS = [
  ["Enter", "Send (a new line on a phone)"], ["Shift+Enter", "New line"], ["Ctrl+Enter", "Send; during a reply: steer it"], ["Esc", "Stop the reply, close a dialog"],
  ["Ctrl+K", "Command palette, search"], ["Ctrl+Shift+O", "New chat"], ["Ctrl+Shift+S", "Search the chats"], ["Ctrl+Shift+L", "Focus the message field"], ["?", "This help, outside a field"],
];

function Help() {
  return html`<${Modal} label="Keyboard shortcuts"><dl class="keys">${KEYS.map(([key, does]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${does}</dd></div>`)}</dl></${Modal}>`;
}

/** @type {{[K in Dialog["kind"]]: (props: Omit<Extract<Dialog, {kind: K}>, "kind">) => Child}} */
const KINDS = { rename: Rename, system: SystemPrompt, share: Share, settings: Settings, help: Help, palette: Palette, debug: DebugDrawer, login: LogIn };

export function Dialogs() {
  if (!state.dialog) return null;
  const { kind, ...props } = state.dialog;
  return html`<${KINDS[kind]} key=${kind} ...${props} />`;
}
