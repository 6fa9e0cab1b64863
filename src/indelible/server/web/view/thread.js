// The conversation: it follows the end unless the user reads something else, and loads what is above while scrolling up.

import { makePendingItem } from "../core/thread.js";
import { duration } from "../core/formatting.js";
import { Action } from "./action.js";
import { Following } from "./following.js";
import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { icon } from "./icons.js";
import { Menu } from "./menu.js";
import { Item } from "./message.js";

const EARLY_PX = 2000; // earlier messages are loaded before their place is reached, few at a time: drawing 200 took 100 ms
const DEMO_STARTERS = ["What can you do?", "Show me a table", "Write some code", "Tell me a long story about a lighthouse"];
const STARTERS = ["Explain something to me step by step", "Help me write a letter", "Review a piece of code", "Plan a weekend"];

/** @param {{c: import("./controller.js").Controller}} props */
function Empty({ c }) {
  const model = c.newChat.model ?? c.models.find((one) => one.default)?.id;
  return html`<div class="empty">
    <span class="drop big" aria-hidden="true"></span>
    <p>Every word is saved as it arrives. Close the tab or restart the server: nothing is lost.</p>
    <div class="starters">${(model === "demo" ? DEMO_STARTERS : STARTERS).map((text) => html`<button type="button" onClick=${() => { c.type(text); if (model === "demo") c.send(); else document.getElementById("message")?.focus(); }}>${text}</button>`)}</div>
    ${model && html`<p class="faint">You are talking to <strong>${model}</strong>${c.newChat.system && html`, with a <button type="button" class="link" onClick=${() => c.show({ kind: "system", chat: null })}>system prompt</button>`}.</p>`}
  </div>`;
}

/** @param {{c: import("./controller.js").Controller}} props */
function Retrying({ c }) {
  const { chat } = c;
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
    ${!c.isReadOnly && html`<div class="buttons">
      <button type="button" onClick=${() => c.messages.retryNow()}>Retry now</button>
      <${OtherModel} c=${c} act=${(/** @type {string} */ model) => c.messages.retryNow(model)} />
    </div>`}
  </div>`;
}

/** @param {{c: import("./controller.js").Controller, act: (model: string) => void}} props */
function OtherModel({ c, act }) {
  if (c.models.length < 2) return null;
  return html`<${Menu} label="Other model" className="" button="Other model" up entries=${c.models.map(({ id }) => ({ text: id, act: () => act(id) }))} />`;
}

/** @param {{c: import("./controller.js").Controller}} props */
function Failed({ c }) {
  const { chat } = c;
  const { message, detail, kind, provider, status } = chat?.error ?? {};
  return html`<div class="card alarm" id="failed">
    ${icon("warn")}
    <div><p role="alert" dir="auto">${message}</p>
      ${(detail || status) && html`<details><summary>Details</summary><p class="faint">${[provider, status && `HTTP ${status}`, kind].filter(Boolean).join(" · ")}</p>${detail && html`<pre tabindex="0">${detail}</pre>`}</details>`}
      <div class="buttons">
        ${!c.isReadOnly && html`<button type="button" class="primary" onClick=${() => chat && c.attempt(() => c.api.retry(chat.id))}>Retry</button>
        <${OtherModel} c=${c} act=${(/** @type {string} */ model) => chat && c.attempt(() => c.api.retry(chat.id, model))} />
        <button type="button" onClick=${() => c.show({ kind: "debug", chat })}>Attempts</button>`}
      </div>
    </div>
  </div>`;
}

/** Items that are drawn and laid out together, or not at all. `isNear`: at the end of the conversation. */
const Page = memo(({ c, items, isNear, lastKey, editingKey, ...state }) => {
  const [isSettled, setSettled] = useState(false);
  useEffect(() => {
    if (isNear) return setSettled(false);
    // It has to be laid out once: the browser remembers its height, and nothing jumps when it comes into sight.
    let frame = requestAnimationFrame(() => { frame = requestAnimationFrame(() => setSettled(true)); });
    return () => cancelAnimationFrame(frame);
  }, [isNear]);
  return html`<ol class=${isSettled ? "stretch settled" : "stretch"} role="presentation">${items.map((/** @type {any} */ item) =>
    html`<${Item} key=${item.key} c=${c} item=${item} isLast=${item.key === lastKey} isEditing=${item.key === editingKey} ...${state} />`)}</ol>`;
});

/** @param {{c: import("./controller.js").Controller, items: any[], pending: any[]}} props */
function List({ c, items, pending }) {
  const { chat, models } = c;
  const { editing } = c.messages;
  const pages = c.thread.paginate(pending.length ? [...items, ...pending.map(makePendingItem)] : items);
  const lastKey = items.at(-1)?.key;
  const hasKey = (/** @type {any[]} */ page, /** @type {string | undefined} */ key) => (key && page.some((item) => item.key === key) ? key : null);
  const editingKey = editing ? items.find(({ messages }) => messages[0]?.id === editing.id)?.key : undefined;
  return html`<div id="messages" role="list" aria-label="Conversation">${pages.map((page, at) => {
    // What is far above is not drawn again because a reply begins or ends. The server refuses what cannot be done then.
    const isNear = at >= pages.length - 2;
    return html`<${Page} key=${page[0].key} c=${c} items=${page} isNear=${isNear} models=${models} canWrite=${!c.isReadOnly} isBusy=${isNear && Boolean(chat?.busy)}
      status=${isNear ? chat?.status : null} lastKey=${isNear ? hasKey(page, lastKey) : null} editingKey=${hasKey(page, editingKey)} />`;
  })}</div>`;
}

/** @param {{c: import("./controller.js").Controller}} props */
export function ThreadView({ c }) {
  const { chat } = c;
  const items = c.items;
  const pending = chat?.busy ? [] : c.pending;
  const scroller = useRef(/** @type {HTMLElement | null} */ (null));
  const following = useRef(/** @type {Following | null} */ (null));
  const shown = useRef({ chat: "", firstTop: 0, seen: "", editing: "" });
  const [isAway, setAway] = useState(false);
  const [, setGrown] = useState(/** @type {any} */ (null));
  c.onGrow = () => setGrown({});

  const scroll = () => {
    const box = scroller.current;
    if (!box) return;
    following.current?.noteScroll();
    noteAway();
    if (box.scrollTop < EARLY_PX && chat?.hasMore && chat.loaded && !c.earlier.isBroken) void c.earlier.load();
  };

  const noteAway = () => {
    if (following.current?.is) shown.current.seen = items.at(-1)?.key ?? "";
    setAway(following.current?.isAway ?? false);
  };

  // Before the elements change: where the first item is.
  const state = shown.current;
  const firstItem = following.current?.is ? null : scroller.current?.querySelector("#messages > ol > li");
  if (firstItem) state.firstTop = firstItem.getBoundingClientRect().top;
  const wasFirst = firstItem?.id ?? "";

  useLayoutEffect(() => {
    const box = scroller.current;
    if (!box) return;
    const follow = (following.current ??= new Following(box));
    if (state.chat !== c.place) {
      Object.assign(state, { chat: c.place, seen: "" });
      follow.is = true;
    }
    const wanted = c.target && items.find(({ messages }) => messages.some(({ id }) => id === c.target)); // a reply has many messages
    const target = wanted && document.getElementById(`m-${wanted.messages[0].id}`);
    if (c.messages.editing && c.messages.editing.id !== state.editing) follow.is = false; // its editor has the focus, and stays in sight
    state.editing = c.messages.editing?.id ?? "";
    if (c.target === "end") { c.target = null; follow.is = true; }
    if (target) {
      c.target = null;
      follow.is = false;
      target.scrollIntoView({ block: "center" });
      follow.moveTo(box.scrollTop);
      target.classList.add("found");
    } else if (follow.is) follow.keepUp();
    else if (wasFirst) {
      const same = document.getElementById(wasFirst);
      const first = box.querySelector("#messages > ol > li");
      // Earlier messages were put above: what is being read stays where it is.
      if (same && same !== first) follow.moveTo(box.scrollTop + same.getBoundingClientRect().top - state.firstTop);
    }
    noteAway();
    if (c.target && c.target !== "end" && chat?.loaded) void c.earlier.show(c.target);
    if (box.scrollTop < EARLY_PX && chat?.hasMore && chat.loaded && !c.earlier.isBroken && box.scrollHeight <= box.clientHeight + 600) void c.earlier.load();
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

  const isEmpty = (!chat && !pending.length && !c.problem);
  const fresh = isAway && state.seen ? items.length - 1 - items.findLastIndex(({ key }) => key === state.seen) : 0;
  return html`<div class="thread">
    <div id="scroll" ref=${scroller} onScroll=${scroll} tabindex="-1">
      ${chat?.loaded && items.length > 0 && html`<p class="top">${chat.hasMore ? (c.earlier.isLoading ? "Loading…" : html`<button type="button" class="link" onClick=${() => c.earlier.load()}>Show earlier messages</button>`) : "Beginning of the chat"}</p>`}
      ${isEmpty && html`<${Empty} c=${c} />`}
      <${List} c=${c} items=${items} pending=${pending} />
      ${c.problem && html`<p class="card slim"><span role="alert">${c.problem}</span>${c.sharedKey === null && html` <button type="button" class="small" onClick=${() => c.go(null)}>Start a new chat</button>`}</p>`}
      ${chat?.details.archived && !c.isReadOnly && html`<p class="card slim">This chat is archived. <button type="button" class="small" onClick=${() => c.chats.update(chat.id, { archived: false }, "Chat restored.")}>Restore</button></p>`}
      ${chat?.retry && html`<${Retrying} c=${c} />`}
      ${chat?.status === "error" && chat.error && html`<${Failed} c=${c} />`}
      ${chat?.status === "pending" && html`<p class="waiting">Queued: no worker is running</p>`}
      ${chat?.action && !c.isReadOnly && html`<${Action} key=${chat.action.calls[0]?.id} c=${c} />`}
      ${chat?.loaded && !chat.busy && chat.status !== "error" && items.at(-1)?.kind === "user" && !pending.length && !chat.action && !c.isReadOnly && html`<p class="card slim">No reply. <button type="button" class="small" onClick=${() => c.attempt(() => c.api.retry(chat.id))}>Retry</button></p>`}
    </div>
    ${isAway && html`<button type="button" class="latest" onClick=${() => { c.target = "end"; c.changed(); }}>${icon("down")} Latest${fresh > 0 ? ` · ${fresh} new` : ""}</button>`}
  </div>`;
}
