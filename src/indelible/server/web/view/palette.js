// The command palette: every action and every chat by name.

import { html, useEffect, useLayoutEffect, useState } from "./html.js";
import { Modal } from "./modal.js";

/** @param {{c: import("./controller.js").Controller}} props */
export function Palette({ c }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [{ query, items }, setFound] = useState(/** @type {{query: string, items: any[]}} */ ({ query: "", items: [] }));
  useEffect(() => {
    let isOld = false;
    const timer = setTimeout(async () => {
      const page = await c.api.listChats({ q: text.trim(), limit: 12 }).catch(() => null);
      if (!isOld && page) setFound({ query: text.trim(), items: page.items });
    }, text ? 120 : 0);
    return () => {
      isOld = true;
      clearTimeout(timer);
    };
  }, [text]);
  const isNamed = (/** @type {string} */ name) => name.toLowerCase().includes(text.trim().toLowerCase());
  const found = items.filter(({ title }) => query === text.trim() || isNamed(title ?? "")); // Enter never opens what an older text has found
  const id = c.chat?.id;
  const listed = id && (c.list.find(id) ?? { id, ...c.chat?.details }); // one that is archived is not in the list
  const commands = [
    ["New chat", () => c.go(null)],
    c.chat?.busy && ["Stop the reply", () => c.stop()],
    listed && ["Rename this chat", () => c.show({ kind: "rename", chat: listed })],
    listed && [listed.pinned ? "Unpin this chat" : "Pin this chat", () => void c.chats.update(listed.id, { pinned: !listed.pinned })],
    listed && [listed.archived ? "Restore this chat" : "Archive this chat", () => void c.chats.update(listed.id, { archived: !listed.archived }, listed.archived ? "Chat restored." : "Chat archived.")],
    listed && ["Delete this chat", () => c.chats.remove(listed.id)],
    listed && ["Summarize earlier messages (compact)", () => void c.attempt(() => c.api.compact(listed.id))],
    ["System prompt", () => c.show({ kind: "system", chat: c.chat && { id } })],
    listed && ["Attempts and requests", () => c.show({ kind: "debug", chat: c.chat })],
    ["Settings", () => c.show({ kind: "settings" })],
    ["Keyboard shortcuts", () => c.show({ kind: "help" })],
    ["Light theme", () => c.preferences.set({ theme: "light" })],
    ["Dark theme", () => c.preferences.set({ theme: "dark" })],
  ].filter(Boolean).filter(([name]) => isNamed(name));
  const entries = [
    ...commands.map(([name, act]) => ({ name, act, kind: "Command" })),
    ...found.map((chat) => ({ name: chat.title || "New chat", kind: "Chat", act: () => c.go(chat.id, chat.match?.message_id ?? null) })),
  ];
  const chosen = Math.min(at, entries.length - 1);
  useLayoutEffect(() => document.getElementById(`palette-${chosen}`)?.scrollIntoView({ block: "nearest" }), [chosen]);
  const run = (/** @type {any} */ entry) => {
    if (!entry) return; // nothing was found, or not yet
    c.show(null);
    entry.act();
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "ArrowDown") { event.preventDefault(); setAt(Math.min(entries.length - 1, chosen + 1)); }
    if (event.key === "ArrowUp") { event.preventDefault(); setAt(Math.max(0, chosen - 1)); }
    if (event.key === "Enter" && !event.isComposing) { event.preventDefault(); run(entries[chosen]); }
  };
  return html`<${Modal} c=${c} label="Command palette" className="palette">
    <input role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${entries.length ? `palette-${chosen}` : undefined} aria-label="Command or chat" placeholder="Type a command or search chats…"
      value=${text} onKeyDown=${key} onInput=${(/** @type {any} */ { target }) => { setText(target.value); setAt(0); }} />
    <ul id="palette-list" role="listbox" aria-label="Commands and chats">${entries.map((entry, number) => html`<li id=${`palette-${number}`} role="option" aria-selected=${number === chosen ? "true" : "false"}
      onClick=${() => run(entry)} onPointerMove=${() => setAt(number)}><span dir="auto">${entry.name}</span><small>${entry.kind}</small></li>`)}</ul>
  </${Modal}>`;
}
