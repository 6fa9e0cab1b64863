// The title of the chat, what it is doing, and whether the page is connected.

import { html, useEffect, useState } from "./html.js";
import { icon } from "./icons.js";
import { api, conversation, list, state, store } from "./page.js";
import { ChatMenu } from "./sidebar.js";
import { isReadOnly } from "./state.js";

/** @type {Record<string, string>} */
const STATUS = {
  idle: "", pending: "Queued: no worker is running", running: "Replying…", interrupting: "Stopping…",
  requires_action: "Waiting for tool results", error: "Error",
};

/** @type {Record<string, string>} */
const LINK = { out: "Logged out", offline: "Offline", away: "Reconnecting…" };

/** How the page is connected: by the feed of the chat that is shown, or, without one, by what it asked last. */
function findLink() {
  const { chat, connection, isLoggedOut } = state;
  if (isLoggedOut) return "out";
  if (!navigator.onLine) return "offline";
  return connection.state === "reconnecting" || (!chat && api.isAway) ? "away" : connection.state;
}

export function Header() {
  const { chat } = state;
  const status = LINK[findLink()] ?? STATUS[chat?.status ?? "idle"] ?? "";
  const listed = chat && (list.find(chat.id) ?? { id: chat.id, title: chat.title, ...chat.details });
  return html`<header id="bar">
    ${state.sharedKey === null && html`<button id="show-chats" type="button" class="quiet" aria-label="Show chats" aria-expanded=${state.isListOpen ? "true" : "false"} aria-controls="chats"
      onClick=${() => store.set({ isListOpen: true })}>${icon("menu")}</button>`}
    <h2 id="title" dir="auto">${conversation.title}</h2>
    ${isReadOnly(state) && html`<span class="tag">read-only</span>`}
    ${chat?.details.archived && html`<span class="tag">archived</span>`}
    <span id="status" role="status">${status}</span>
    <${Dot} />
    ${listed && !isReadOnly(state) && html`<${ChatMenu} chat=${listed} label="This chat" />`}
  </header>`;
}

/** It is green only if all is well. */
function Dot() {
  const { retryAt } = state.connection;
  const link = findLink();
  const isLost = link in LINK;
  const [, setTick] = useState(0);
  useEffect(() => {
    if (link !== "away") return;
    const timer = setInterval(() => setTick((tick) => tick + 1), 500);
    return () => clearInterval(timer);
  }, [link]);
  const left = Math.max(0, Math.ceil(((retryAt ?? 0) - Date.now()) / 1000));
  const live = link === "shared" ? "Live, through another tab of this browser." : "Live";
  const hasFailed = state.chat?.status === "error";
  const words = link === "out" ? "You are logged out. What you send waits here."
    : link === "offline" ? "You are offline. What you send waits here."
    : link === "away" ? `The server cannot be reached. Trying again${left ? ` in ${left} s` : ""}. You can go on writing.`
    : link === "connecting" ? "Connecting…" : hasFailed ? "Live. The last reply failed." : live;
  return html`<span class=${`dot ${isLost ? "away" : link === "connecting" ? "opening" : hasFailed ? "failed" : "ok"}`} title=${words} role="img" aria-label=${words}></span>`;
}
