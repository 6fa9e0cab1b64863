// The command palette: every action and every chat by name.

import { html, useEffect, useLayoutEffect, useState } from "./html.js";
import { Modal } from "./modal.js";
import { api, chats, conversation, list, navigation, preferences, show, state, toasts } from "./page.js";

/** @import { ChatRef, ChatSummary } from "../core/shapes.js" */
/** @import { On } from "./html.js" */
/** @typedef {{name: string, act: () => void, kind: string}} Entry */

export function Palette() {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [{ query, items }, setFound] = useState(/** @type {{query: string, items: ChatSummary[]}} */ ({ query: "", items: [] }));
  useEffect(() => {
    let isOld = false;
    const timer = setTimeout(async () => {
      const page = await api.listChats({ q: text.trim(), limit: 12 }).catch(() => null);
      if (!isOld && page) setFound({ query: text.trim(), items: page.items });
    }, text ? 120 : 0);
    return () => {
      isOld = true;
      clearTimeout(timer);
    };
  }, [text]);
  const isNamed = (/** @type {string} */ name) => name.toLowerCase().includes(text.trim().toLowerCase());
  const found = items.filter(({ title }) => query === text.trim() || isNamed(title ?? "")); // Enter never opens what an older text has found
  const { chat } = state;
  /** @type {ChatRef | null} */
  const listed = chat && (list.find(chat.id) ?? { id: chat.id, ...chat.details }); // one that is archived is not in the list
  /** @type {([string, () => void] | false | null | undefined)[]} */
  const commands = [
    ["New chat", () => navigation.go(null)],
    chat?.busy && ["Stop the reply", () => conversation.stop()],
    listed && ["Rename this chat", () => show({ kind: "rename", chat: listed })],
    listed && [listed.pinned ? "Unpin this chat" : "Pin this chat", () => void chats.update(listed.id, { pinned: !listed.pinned })],
    listed && [listed.archived ? "Restore this chat" : "Archive this chat", () => void chats.update(listed.id, { archived: !listed.archived }, listed.archived ? "Chat restored." : "Chat archived.")],
    listed && ["Delete this chat", () => chats.remove(listed.id)],
    listed && ["Summarize earlier messages (compact)", () => void toasts.attempt(() => api.compact(listed.id))],
    ["System prompt", () => show({ kind: "system", chat })],
    listed && ["Attempts and requests", () => show({ kind: "debug", chat: listed })],
    ["Settings", () => show({ kind: "settings" })],
    ["Keyboard shortcuts", () => show({ kind: "help" })],
    ["Light theme", () => preferences.set({ theme: "light" })],
    ["Dark theme", () => preferences.set({ theme: "dark" })],
  ];
  /** @type {Entry[]} */
  const entries = [
    ...commands.flatMap((command) => (command && isNamed(command[0]) ? { name: command[0], act: command[1], kind: "Command" } : [])),
    ...found.map(({ id, title, match }) => ({ name: title || "New chat", kind: "Chat", act: () => navigation.go(id, match?.message_id ?? null) })),
  ];
  const chosen = Math.min(at, entries.length - 1);
  useLayoutEffect(() => document.getElementById(`palette-${chosen}`)?.scrollIntoView({ block: "nearest" }), [chosen]);
  const run = (/** @type {Entry | undefined} */ entry) => {
    if (!entry) return; // nothing was found, or not yet
    show(null);
    entry.act();
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "ArrowDown") { event.preventDefault(); setAt(Math.min(entries.length - 1, chosen + 1)); }
    if (event.key === "ArrowUp") { event.preventDefault(); setAt(Math.max(0, chosen - 1)); }
    if (event.key === "Enter" && !event.isComposing) { event.preventDefault(); run(entries[chosen]); }
  };
  return html`<${Modal} label="Command palette" className="palette">
    <input role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${entries.length ? `palette-${chosen}` : undefined} aria-label="Command or chat" placeholder="Type a command or search chats…"
      value=${text} onKeyDown=${key} onInput=${(/** @type {On} */ { currentTarget: target }) => { setText(target.value); setAt(0); }} />
    <ul id="palette-list" role="listbox" aria-label="Commands and chats">${entries.map((entry, number) => html`<li id=${`palette-${number}`} role="option" aria-selected=${number === chosen ? "true" : "false"}
      onClick=${() => run(entry)} onPointerMove=${() => setAt(number)}><span dir="auto">${entry.name}</span><small>${entry.kind}</small></li>`)}</ul>
  </${Modal}>`;
}
