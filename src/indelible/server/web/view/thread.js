// The conversation: it follows the end unless the user reads something else, and loads what is above while scrolling up.

import { makePendingItem } from "../core/thread.js";
import { duration } from "../core/formatting.js";
import { Action } from "./action.js";
import { Following } from "./following.js";
import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { icon } from "./icons.js";
import { Menu } from "./menu.js";
import { Item } from "./message.js";
import { chats, conversation, earlier, messageActions, navigation, newChat, show, state, store, writing } from "./page.js";
import { currentModel, isReadOnly } from "./state.js";

/** @import { Model } from "../core/shapes.js" */
/** @import { Item as ThreadItem } from "../core/thread.js" */
/** @import { Entry } from "../core/outbox.js" */

const EARLY_PX = 2000; // earlier messages are loaded before their place is reached, few at a time: drawing 200 took 100 ms
const DEMO_STARTERS = ["What can you do?", "Show me a table", "Write some code", "Tell me a long story about a lighthouse"];
const STARTERS = ["Explain something to me step by step", "Help me write a letter", "Review a piece of code", "Plan a weekend"];

function Empty() {
  const model = currentModel(state);
  return html`<div class="empty">
    <span class="drop big" aria-hidden="true"></span>
    <p>Every word is saved as it arrives. Close the tab or restart the server: nothing is lost.</p>
    <div class="starters">${(model === "demo" ? DEMO_STARTERS : STARTERS).map((text) => html`<button type="button" onClick=${() => { writing.type(text); if (model === "demo") writing.send(); else document.getElementById("message")?.focus(); }}>${text}</button>`)}</div>
    ${model && html`<p class="faint">You are talking to <strong>${model}</strong>${newChat.system && html`, with a <button type="button" class="link" onClick=${() => show({ kind: "system", chat: null })}>system prompt</button>`}.</p>`}
  </div>`;
}

function Retrying() {
  const { chat } = state;
  const [, setTick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setTick((tick) => tick + 1), 250);
    return () => clearInterval(timer);
  }, []);
  const { message, delay_ms = 0, number = 0, retrying_at, receivedAt } = chat?.retry ?? {};
  const due = receivedAt ? receivedAt + delay_ms : Date.parse(retrying_at ?? "") || Date.now();
  const left = Math.max(0, due - Date.now());
  const ring = useRef(/** @type {SVGCircleElement | null} */ (null));
  useLayoutEffect(() => { if (ring.current) ring.current.style.strokeDashoffset = String(50.3 * (1 - (delay_ms ? left / delay_ms : 0))); });
  const reason = (message ?? "").split(". ")[0].replace(/\.$/, "");
  return html`<div class="card amber" id="retrying">
    <svg class="ring" viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="8" /><circle ref=${ring} class="left" cx="10" cy="10" r="8" /></svg>
    <p>${reason}. Retrying ${left > 500 ? `in ${duration(left).replace(/\.\d/, "")}` : "now"} (attempt ${number + 1}).</p>
    ${!isReadOnly(state) && html`<div class="buttons">
      <button type="button" onClick=${() => messageActions.retryNow()}>Retry now</button>
      <${OtherModel} act=${(/** @type {string} */ model) => messageActions.retryNow(model)} />
    </div>`}
  </div>`;
}

/** @param {{act: (model: string) => void}} props */
function OtherModel({ act }) {
  if (state.models.length < 2) return null;
  return html`<${Menu} label="Other model" className="" button="Other model" up entries=${state.models.map(({ id }) => ({ text: id, act: () => act(id) }))} />`;
}

function Failed() {
  const { chat } = state;
  const { message, detail, kind, provider, status } = chat?.error ?? {};
  return html`<div class="card alarm" id="failed">
    ${icon("warn")}
    <div><p role="alert" dir="auto">${message}</p>
      ${(detail || status) && html`<details><summary>Details</summary><p class="faint">${[provider, status && `HTTP ${status}`, kind].filter(Boolean).join(" · ")}</p>${detail && html`<pre tabindex="0">${detail}</pre>`}</details>`}
      <div class="buttons">
        ${!isReadOnly(state) && html`<button type="button" class="primary" onClick=${() => messageActions.retry()}>Retry</button>
        <${OtherModel} act=${(/** @type {string} */ model) => messageActions.retry(model)} />
        <button type="button" onClick=${() => chat && show({ kind: "debug", chat })}>Attempts</button>`}
      </div>
    </div>
  </div>`;
}

/**
 * @typedef {object} PageProps  `isNear`: at the end of the conversation
 * @property {ThreadItem[]} items
 * @property {boolean} isNear
 * @property {string | null | undefined} lastKey
 * @property {string | null | undefined} editingKey
 * @property {Model[]} models
 * @property {boolean} canWrite
 * @property {boolean} isBusy
 * @property {string | null | undefined} status
 */

/** Items that are drawn and laid out together, or not at all. */
const Page = memo((/** @type {PageProps} */ { items, isNear, lastKey, editingKey, ...shared }) => {
  const [isSettled, setSettled] = useState(false);
  useEffect(() => {
    if (isNear) return setSettled(false);
    // It has to be laid out once: the browser remembers its height, and nothing jumps when it comes into sight.
    let frame = requestAnimationFrame(() => { frame = requestAnimationFrame(() => setSettled(true)); });
    return () => cancelAnimationFrame(frame);
  }, [isNear]);
  return html`<ol class=${isSettled ? "stretch settled" : "stretch"} role="presentation">${items.map((item) =>
    html`<${Item} key=${item.key} item=${item} isLast=${item.key === lastKey} isEditing=${item.key === editingKey} ...${shared} />`)}</ol>`;
});

/** @param {{items: ThreadItem[], pending: Entry[]}} props */
function List({ items, pending }) {
  const { chat, models } = state;
  const { editing } = messageActions;
  const pages = conversation.thread.paginate(pending.length ? [...items, ...pending.map(makePendingItem)] : items);
  const lastKey = items.at(-1)?.key;
  const hasKey = (/** @type {ThreadItem[]} */ page, /** @type {string | undefined} */ key) => (key && page.some((item) => item.key === key) ? key : null);
  const editingKey = editing ? items.find(({ messages }) => messages[0]?.id === editing.id)?.key : undefined;
  return html`<div id="messages" role="list" aria-label="Conversation">${pages.map((page, at) => {
    // What is far above is not drawn again because a reply begins or ends. The server refuses what cannot be done then.
    const isNear = at >= pages.length - 2;
    return html`<${Page} key=${page[0].key} items=${page} isNear=${isNear} models=${models} canWrite=${!isReadOnly(state)} isBusy=${isNear && Boolean(chat?.busy)}
      status=${isNear ? chat?.status : null} lastKey=${isNear ? hasKey(page, lastKey) : null} editingKey=${hasKey(page, editingKey)} />`;
  })}</div>`;
}

export function ThreadView() {
  const { chat } = state;
  const { items } = conversation;
  const pending = chat?.busy ? [] : conversation.pending;
  const scroller = useRef(/** @type {HTMLElement | null} */ (null));
  const following = useRef(/** @type {Following | null} */ (null));
  const shown = useRef({ chat: "", firstTop: 0, seen: "", editing: "" });
  const [isAway, setAway] = useState(false);
  const [, setGrown] = useState({});
  store.onGrow = () => setGrown({});

  const scroll = () => {
    const box = scroller.current;
    if (!box) return;
    following.current?.noteScroll();
    noteAway();
    if (box.scrollTop < EARLY_PX && chat?.hasMore && chat.loaded && !state.isEarlierBroken) void earlier.load();
  };

  const noteAway = () => {
    if (following.current?.is) shown.current.seen = items.at(-1)?.key ?? "";
    setAway(following.current?.isAway ?? false);
  };

  // Before the elements change: where the first item is.
  const last = shown.current;
  const firstItem = following.current?.is ? null : scroller.current?.querySelector("#messages > ol > li");
  if (firstItem) last.firstTop = firstItem.getBoundingClientRect().top;
  const wasFirst = firstItem?.id ?? "";

  useLayoutEffect(() => {
    const box = scroller.current;
    if (!box) return;
    const follow = (following.current ??= new Following(box));
    if (last.chat !== state.place) {
      Object.assign(last, { chat: state.place, seen: "" });
      follow.is = true;
    }
    const wanted = state.target && items.find(({ messages }) => messages.some(({ id }) => id === state.target)); // a reply has many messages
    const target = wanted && document.getElementById(`m-${wanted.messages[0].id}`);
    const { editing } = messageActions;
    if (editing && editing.id !== last.editing) follow.is = false; // its editor has the focus, and stays in sight
    last.editing = editing?.id ?? "";
    if (state.target === "end") { state.target = null; follow.is = true; }
    if (target) {
      state.target = null;
      follow.is = false;
      target.scrollIntoView({ block: "center" });
      follow.moveTo(box.scrollTop);
      target.classList.add("found");
    } else if (follow.is) follow.keepUp();
    else if (wasFirst) {
      const same = document.getElementById(wasFirst);
      const first = box.querySelector("#messages > ol > li");
      // Earlier messages were put above: what is being read stays where it is.
      if (same && same !== first) follow.moveTo(box.scrollTop + same.getBoundingClientRect().top - last.firstTop);
    }
    noteAway();
    if (state.target && state.target !== "end" && chat?.loaded) void earlier.show(state.target);
    if (box.scrollTop < EARLY_PX && chat?.hasMore && chat.loaded && !state.isEarlierBroken && box.scrollHeight <= box.clientHeight + 600) void earlier.load();
  });

  useEffect(() => {
    // A picture or a formula that is drawn later must not push the end out of sight.
    const watcher = new ResizeObserver(() => following.current?.keepUp());
    const list = document.getElementById("messages");
    if (list) watcher.observe(list);
    if (scroller.current) watcher.observe(scroller.current);
    const stopWatching = following.current?.watchGestures();
    return () => {
      watcher.disconnect();
      stopWatching?.();
    };
  }, []);

  const isEmpty = (!chat && !pending.length && !state.problem);
  const fresh = isAway && last.seen ? items.length - 1 - items.findLastIndex(({ key }) => key === last.seen) : 0;
  return html`<div class="thread">
    <div id="scroll" ref=${scroller} onScroll=${scroll} tabindex="-1">
      ${chat?.loaded && items.length > 0 && html`<p class="top">${chat.hasMore ? (state.isLoadingEarlier ? "Loading…" : html`<button type="button" class="link" onClick=${() => earlier.load()}>Show earlier messages</button>`) : "Beginning of the chat"}</p>`}
      ${isEmpty && html`<${Empty} />`}
      <${List} items=${items} pending=${pending} />
      ${state.problem && html`<p class="card slim"><span role="alert">${state.problem}</span>${state.sharedKey === null && html` <button type="button" class="small" onClick=${() => navigation.go(null)}>Start a new chat</button>`}</p>`}
      ${chat?.details.archived && !isReadOnly(state) && html`<p class="card slim">This chat is archived. <button type="button" class="small" onClick=${() => chats.update(chat.id, { archived: false }, "Chat restored.")}>Restore</button></p>`}
      ${chat?.retry && html`<${Retrying} />`}
      ${chat?.status === "error" && chat.error && html`<${Failed} />`}
      ${chat?.status === "pending" && html`<p class="waiting">Queued: no worker is running</p>`}
      ${chat?.action && !isReadOnly(state) && html`<${Action} key=${chat.action.calls[0]?.id} />`}
      ${chat?.loaded && !chat.busy && chat.status !== "error" && items.at(-1)?.kind === "user" && !pending.length && !chat.action && !isReadOnly(state) && html`<p class="card slim">No reply. <button type="button" class="small" onClick=${() => messageActions.retry()}>Retry</button></p>`}
    </div>
    ${isAway && html`<button type="button" class="latest" onClick=${() => store.set({ target: "end" })}>${icon("down")} Latest${fresh > 0 ? ` · ${fresh} new` : ""}</button>`}
  </div>`;
}
