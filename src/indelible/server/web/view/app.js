// The page: chats beside a conversation, drawn from the state (view/page.js), at most once per frame.

import { Composer } from "./composer.js";
import { Dialogs } from "./dialogs.js";
import { Header } from "./header.js";
import { html, render } from "./html.js";
import { ToastList } from "./modal.js";
import { conversation, list, navigation, show, start, state, store } from "./page.js";
import { SessionBar } from "./sessionbar.js";
import { Sidebar } from "./sidebar.js";
import { ThreadView } from "./thread.js";

const root = /** @type {HTMLElement} */ (document.getElementById("app"));

function App() {
  const isShared = state.sharedKey !== null;
  return html`<div class=${`page${state.isListOpen ? " chats-shown" : ""}${isShared ? " shared" : ""}`}>
    ${!isShared && html`<a class="skip" href="#message" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); document.getElementById("message")?.focus(); }}>Skip to the message field</a>`}
    ${!isShared && html`<${Sidebar} />`}
    <div id="shade" onClick=${() => closeList()}></div>
    <main>
      <${Header} />
      <${ThreadView} />
      ${!state.dialog && html`<${ToastList} />`}
      ${!isShared && html`<${SessionBar} /><${Composer} />`}
    </main>
    <div class="hidden" aria-live="polite" id="announcement">${state.announcement}</div>
    <${Dialogs} />
  </div>`;
}

function closeList() {
  store.set({ isListOpen: false });
  document.getElementById("show-chats")?.focus();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (state.sharedKey !== null) return; // a reader has nothing to command
  const target = /** @type {HTMLElement} */ (event.target);
  const isField = target.matches("input, textarea, select");
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && event.isComposing) return; // ends the composition
  if (event.key === "Escape" && !state.dialog) {
    if (target.matches('input[type="search"]') && list.query) list.search(""); // Firefox does not clear it by itself
    else if (state.isListOpen && isDrawer()) closeList();
    else conversation.stop();
  } else if (command && event.key.toLowerCase() === "k") {
    event.preventDefault();
    show(state.dialog?.kind === "palette" ? null : { kind: "palette" });
  } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    navigation.go(null);
  } else if (command && event.shiftKey && event.key.toLowerCase() === "s") {
    event.preventDefault();
    if (isDrawer()) store.set({ isListOpen: !state.isListOpen });
    else /** @type {HTMLElement | null} */ (document.querySelector("#chats input"))?.focus();
  } else if (command && event.shiftKey && event.key.toLowerCase() === "l") {
    event.preventDefault();
    document.getElementById("message")?.focus();
  } else if (event.key === "?" && !isField && !state.dialog) {
    event.preventDefault();
    show({ kind: "help" });
  } else if (event.key === "Tab" && state.isListOpen && isDrawer()) keepInList(event);
}

/** Whether the chats cover the page when they are shown (css/layout.css). */
function isDrawer() {
  return matchMedia("(max-width: 44rem)").matches;
}

/** While the drawer of chats covers the page, Tab stays inside it. @param {KeyboardEvent} event */
function keepInList(event) {
  const all = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("#chats :is(a, button, input):not([hidden])")]);
  const edge = event.shiftKey ? all[0] : all.at(-1);
  const list = document.getElementById("chats");
  if (document.activeElement !== edge && list?.contains(document.activeElement)) return;
  event.preventDefault();
  (event.shiftKey ? all.at(-1) : all[0])?.focus();
}

let swipeFrom = 0;
document.addEventListener("touchstart", ({ touches }) => { swipeFrom = touches[0].clientX; }, { passive: true });
document.addEventListener("touchend", ({ changedTouches }) => { if (state.isListOpen && swipeFrom - changedTouches[0].clientX > 60) closeList(); }, { passive: true });
document.addEventListener("keydown", onKey);
store.onDraw = () => render(html`<${App} tick=${{}} />`, root);
store.onDraw();
void start();
