// The chats: pinned first, then by day; search; marks for running, unread and failed ones.

import { BUSY } from "../core/chat.js";
import { groupChats, shorten } from "../core/formatting.js";
import { html, useEffect, useLayoutEffect, useRef } from "./html.js";
import { icon } from "./icons.js";
import { Menu } from "./menu.js";
import { chats, list, navigation, preferences, session, show, state, store } from "./page.js";
import { isPhone } from "./preferences.js";
import { has } from "./state.js";

/** @import { ChatRef, ChatSummary, Snippet } from "../core/shapes.js" */
/** @import { On } from "./html.js" */

export function Sidebar() {
    const groups = list.found ? [{ name: "Results", chats: list.shown }] : groupChats(list.shown);
  useLayoutEffect(() => { // the drawer has opened: not into a field if that would raise a keyboard
    if (state.isListOpen) /** @type {HTMLElement | null} */ (document.querySelector(isPhone() ? "#new-chat" : "#chats input"))?.focus();
  }, [state.isListOpen]);
  return html`<nav id="chats" aria-label="Chats">
    <header>
      <h1><span class="drop" aria-hidden="true"></span>Indelible</h1>
      <button type="button" class="quiet" aria-label="Command palette" title="Command palette (Ctrl+K)" onClick=${() => show({ kind: "palette" })}><kbd>Ctrl K</kbd></button>
    </header>
    <button id="new-chat" type="button" onClick=${() => { navigation.go(null); document.getElementById("message")?.focus(); }}>${icon("plus")} New chat</button>
    <label class="search">${icon("search")}
      <input type="search" placeholder="Search" aria-label="Search chats" value=${list.query} maxlength="500"
        onInput=${(/** @type {On} */ { currentTarget: target }) => list.search(target.value)} />
    </label>
    <div class="groups">
      ${list.showsArchived && html`<p class="where">Archived chats <button type="button" class="link" onClick=${() => list.showArchived(false)}>Back</button></p>`}
      ${navigation.unsent.length > 0 && html`<section><h2>Not sent</h2>
        <ol class="chat-list">${navigation.unsent.map(({ key, chat, text }) => html`<li key=${key} class="failed">
          <a href=${location.pathname} onClick=${(/** @type {Event} */ event) => { event.preventDefault(); navigation.goToUnsent(chat); }}><span class="name" dir="auto">${text || "file"}</span><span class="badge"></span></a>
        </li>`)}</ol></section>`}
      ${groups.map(({ name, chats: listed }) => html`<section key=${name}>
        <h2>${name}</h2>
        <ol class="chat-list">${listed.map((chat) => html`<${Row} key=${chat.id} chat=${chat} />`)}</ol>
      </section>`)}
      ${list.found?.length === 0 && html`<p class="where">Nothing found.</p>`}
      ${!list.found && list.isLoaded && !list.items.length && html`<p class="where">${list.showsArchived ? "No archived chats." : "No chats yet."}</p>`}
      ${list.more && html`<${More} />`}
    </div>
    <${Foot} />
  </nav>`;
}

function More() {
  const place = useRef(null);
  useEffect(() => {
    const watcher = new IntersectionObserver((seen) => { if (seen.some(({ isIntersecting }) => isIntersecting)) void list.loadMore(); });
    if (place.current) watcher.observe(place.current);
    return () => watcher.disconnect();
  }, [list.more]);
  return html`<button ref=${place} type="button" class="quiet wide" onClick=${() => list.loadMore()}>Show more</button>`;
}

function Foot() {
  const { theme } = preferences;
  const isDark = theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  return html`<footer>
    <${Menu} label="Account and settings" up className="quiet account" button=${html`${icon("gear")}<span>${session.userName ?? "Settings"}</span>`} entries=${[
      { text: "Settings", icon: icon("gear"), act: () => show({ kind: "settings" }) },
      { text: list.showsArchived ? "All chats" : "Archived chats", icon: icon("archive"), act: () => list.showArchived(!list.showsArchived) },
      has(state, "POST /chats/import") && { text: "Import a chat…", icon: icon("export"), act: () => document.getElementById("import")?.click() },
      { text: "Keyboard shortcuts", icon: icon("keyboard"), act: () => show({ kind: "help" }) },
      state.session?.login === "required" && { text: "Log out", icon: icon("close"), act: () => void session.logOut() },
    ]} />
    <input id="import" type="file" accept="application/json,.json" hidden aria-label="Import a chat"
      onChange=${(/** @type {On} */ { currentTarget: target }) => { if (target.files?.[0]) void chats.import(target.files[0]); target.value = ""; }} />
    <button type="button" class="quiet" aria-label=${isDark ? "Use the light theme" : "Use the dark theme"} title=${isDark ? "Light theme" : "Dark theme"}
      onClick=${() => preferences.set({ theme: isDark ? "light" : "dark" })}>${icon(isDark ? "sun" : "moon")}</button>
  </footer>`;
}

/** @param {{chat: ChatSummary}} props */
function Row({ chat }) {
  const title = chat.title || "New chat";
  const mark = BUSY.includes(chat.status) ? "busy" : chat.status === "error" ? "failed" : chat.status === "requires_action" ? "waiting" : chat.unread && state.chat?.id !== chat.id ? "unread" : "";
  const words = /** @type {Record<string, string>} */ ({ busy: "replying", failed: "error", waiting: "needs you", unread: "unread" })[mark];
  return html`<li class=${mark || undefined}>
    <a href=${`#${chat.id}${chat.match?.message_id ? `/${chat.match.message_id}` : ""}`} aria-current=${state.chat?.id === chat.id ? "page" : undefined}
      onClick=${() => store.set({ isListOpen: false })}>
      <span class="name" dir="auto">${title}</span>${words && html`<span class="badge" title=${words}><span class="hidden"> (${words})</span></span>`}
      ${chat.match?.snippet && html`<small dir="auto">${drawSnippet(chat.match.snippet)}</small>`}
    </a>
    <${ChatMenu} chat=${chat} />
  </li>`;
}

/** @param {Snippet | string} snippet */
function drawSnippet(snippet) {
  if (typeof snippet === "string") return shorten(snippet, 120);
  const pieces = [];
  let at = 0;
  for (const [from, to] of snippet.ranges ?? []) {
    pieces.push(snippet.text.slice(at, from), html`<mark>${snippet.text.slice(from, to)}</mark>`);
    at = to;
  }
  return [...pieces, snippet.text.slice(at)];
}

/** @param {{chat: ChatRef, label?: string}} props */
export function ChatMenu({ chat, label = "Chat actions" }) {
  return html`<${Menu} label=${label} className="quiet small" button=${icon("more")} entries=${[
    { text: "Rename", icon: icon("edit"), act: () => show({ kind: "rename", chat }) },
    { text: chat.pinned ? "Unpin" : "Pin", icon: icon("pin"), act: () => void chats.update(chat.id, { pinned: !chat.pinned }) },
    { text: "System prompt", icon: icon("spark"), act: () => { navigation.go(chat.id); show({ kind: "system", chat }); } },
    has(state, "POST /chats/{chat_id}/shares") && { text: "Share…", icon: icon("share"), act: () => show({ kind: "share", chat }) },
    has(state, "GET /chats/{chat_id}/export") && { text: "Export as Markdown", icon: icon("export"), act: () => chats.export(chat.id, "md") },
    has(state, "GET /chats/{chat_id}/export") && { text: "Export as JSON", icon: icon("export"), act: () => chats.export(chat.id, "json") },
    { text: "Attempts and requests", icon: icon("debug"), act: () => { navigation.go(chat.id); show({ kind: "debug", chat }); } },
    { text: chat.archived ? "Restore" : "Archive", icon: icon("archive"), act: () => void chats.update(chat.id, { archived: !chat.archived }, chat.archived ? "Chat restored." : "Chat archived.") },
    { text: "Delete", icon: icon("trash"), danger: true, act: () => chats.remove(chat.id) },
  ]} />`;
}
