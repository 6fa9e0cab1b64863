// The title of the chat, what it is doing, and whether the page is connected.

import { html, useEffect, useState } from "./html.js";
import { icon } from "./icons.js";
import { ChatMenu } from "./sidebar.js";

/** @type {Record<string, string>} */
const STATUS = {
  idle: "", pending: "Queued: no worker is running", running: "Replying…", interrupting: "Stopping…",
  requires_action: "Waiting for tool results", error: "Error",
};

/** @param {{c: import("./controller.js").Controller}} props */
export function Header({ c }) {
  const { chat, connection } = c;
  const isLost = connection.state === "reconnecting" || !navigator.onLine;
  const status = c.session.isOver ? "Logged out" : isLost ? (navigator.onLine ? "Reconnecting…" : "Offline") : STATUS[chat?.status ?? "idle"] ?? "";
  const listed = chat && (c.list.find(chat.id) ?? { id: chat.id, title: chat.title, ...chat.details });
  return html`<header id="bar">
    <button id="show-chats" type="button" class="quiet" aria-label="Show chats" aria-expanded=${c.isListOpen ? "true" : "false"} aria-controls="chats"
      onClick=${() => { c.isListOpen = true; c.changed(); }}>${icon("menu")}</button>
    <h2 id="title" dir="auto">${c.titleOf(chat)}</h2>
    ${c.isReadOnly && html`<span class="tag">read-only</span>`}
    ${chat?.details.archived && html`<span class="tag">archived</span>`}
    <span id="status" role="status">${status}</span>
    <${Dot} c=${c} isLost=${isLost} />
    ${listed && !c.isReadOnly && html`<${ChatMenu} c=${c} chat=${listed} label="This chat" />`}
  </header>`;
}

/** @param {{c: import("./controller.js").Controller, isLost: boolean}} props */
function Dot({ c, isLost }) {
  const { state, retryAt } = c.connection;
  const [, setTick] = useState(0);
  useEffect(() => {
    if (!isLost) return;
    const timer = setInterval(() => setTick((tick) => tick + 1), 500);
    return () => clearInterval(timer);
  }, [isLost]);
  const left = Math.max(0, Math.ceil(((retryAt ?? 0) - Date.now()) / 1000));
  const words = !navigator.onLine ? "You are offline. What you send waits here."
    : isLost ? `The connection was lost. Trying again${left ? ` in ${left} s` : ""}. You can go on writing.`
    : state === "shared" ? "Live, through another tab of this browser." : state === "connecting" ? "Connecting…" : "Live";
  return html`<span class=${`dot ${isLost ? "away" : state === "connecting" ? "opening" : "ok"}`} title=${words} role="img" aria-label=${words}></span>`;
}
