// The title of the chat, what it is doing, and whether the page is connected.

import { html, useEffect, useState } from "./html.js";
import { icon } from "./icons.js";
import { ChatMenu } from "./sidebar.js";

/** @type {Record<string, string>} */
const STATUS = {
  idle: "", pending: "Queued: no worker is running", running: "Replying…", interrupting: "Stopping…",
  requires_action: "Waiting for tool results", error: "Error",
};

/** @type {Record<string, string>} */
const LINK = { out: "Logged out", offline: "Offline", away: "Reconnecting…" };

/** How the page is connected: by the feed of the chat that is shown, or, without one, by what it asked last. @param {import("./controller.js").Controller} c */
function findLink({ connection, hub, api, session }) {
  if (session.isOver) return "out";
  if (!navigator.onLine) return "offline";
  return connection.state === "reconnecting" || (!hub && api.isAway) ? "away" : connection.state;
}

/** @param {{c: import("./controller.js").Controller}} props */
export function Header({ c }) {
  const { chat } = c;
  const status = LINK[findLink(c)] ?? STATUS[chat?.status ?? "idle"] ?? "";
  const listed = chat && (c.list.find(chat.id) ?? { id: chat.id, title: chat.title, ...chat.details });
  return html`<header id="bar">
    ${c.sharedKey === null && html`<button id="show-chats" type="button" class="quiet" aria-label="Show chats" aria-expanded=${c.isListOpen ? "true" : "false"} aria-controls="chats"
      onClick=${() => { c.isListOpen = true; c.changed(); }}>${icon("menu")}</button>`}
    <h2 id="title" dir="auto">${c.titleOf(chat)}</h2>
    ${c.isReadOnly && html`<span class="tag">read-only</span>`}
    ${chat?.details.archived && html`<span class="tag">archived</span>`}
    <span id="status" role="status">${status}</span>
    <${Dot} c=${c} />
    ${listed && !c.isReadOnly && html`<${ChatMenu} c=${c} chat=${listed} label="This chat" />`}
  </header>`;
}

/** It is green only if all is well. @param {{c: import("./controller.js").Controller}} props */
function Dot({ c }) {
  const { retryAt } = c.connection;
  const state = findLink(c);
  const isLost = state in LINK;
  const [, setTick] = useState(0);
  useEffect(() => {
    if (state !== "away") return;
    const timer = setInterval(() => setTick((tick) => tick + 1), 500);
    return () => clearInterval(timer);
  }, [state]);
  const left = Math.max(0, Math.ceil(((retryAt ?? 0) - Date.now()) / 1000));
  const live = state === "shared" ? "Live, through another tab of this browser." : "Live";
  const hasFailed = c.chat?.status === "error";
  const words = state === "out" ? "You are logged out. What you send waits here."
    : state === "offline" ? "You are offline. What you send waits here."
    : state === "away" ? `The server cannot be reached. Trying again${left ? ` in ${left} s` : ""}. You can go on writing.`
    : state === "connecting" ? "Connecting…" : hasFailed ? "Live. The last reply failed." : live;
  return html`<span class=${`dot ${isLost ? "away" : state === "connecting" ? "opening" : hasFailed ? "failed" : "ok"}`} title=${words} role="img" aria-label=${words}></span>`;
}
