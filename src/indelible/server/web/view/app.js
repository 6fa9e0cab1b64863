// The page: chats beside a conversation, drawn from the controller's state, at most once per frame.

import { Composer } from "./composer.js";
import { Controller } from "./controller.js";
import { Dialogs } from "./dialogs.js";
import { Header } from "./header.js";
import { html, render } from "./html.js";
import { Toasts } from "./modal.js";
import { SessionBar } from "./session.js";
import { Sidebar } from "./sidebar.js";
import { ThreadView } from "./thread.js";

const c = new Controller();
const root = /** @type {HTMLElement} */ (document.getElementById("app"));

function App() {
  const isShared = c.sharedKey !== null;
  return html`<div class=${`page${c.isListOpen ? " chats-shown" : ""}${isShared ? " shared" : ""}`}>
    ${!isShared && html`<a class="skip" href="#message" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); document.getElementById("message")?.focus(); }}>Skip to the message field</a>`}
    ${!isShared && html`<${Sidebar} c=${c} />`}
    <div id="shade" onClick=${() => closeList()}></div>
    <main>
      <${Header} c=${c} />
      <${ThreadView} c=${c} />
      ${!c.dialog && html`<${Toasts} c=${c} />`}
      ${!isShared && html`<${SessionBar} c=${c} /><${Composer} c=${c} />`}
    </main>
    <div class="hidden" aria-live="polite" id="announcement">${c.announcement}</div>
    <${Dialogs} c=${c} />
  </div>`;
}

function closeList() {
  c.isListOpen = false;
  c.changed();
  document.getElementById("show-chats")?.focus();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (c.sharedKey !== null) return; // a reader has nothing to command
  const target = /** @type {HTMLElement} */ (event.target);
  const isField = target.matches("input, textarea, select");
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && event.isComposing) return; // ends the composition
  if (event.key === "Escape" && !c.dialog) {
    if (target.matches('input[type="search"]') && c.list.query) c.list.search(""); // Firefox does not clear it by itself
    else if (c.isListOpen && isDrawer()) closeList();
    else c.stop();
  } else if (command && event.key.toLowerCase() === "k") {
    event.preventDefault();
    c.show(c.dialog?.kind === "palette" ? null : { kind: "palette" });
  } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    c.go(null);
  } else if (command && event.shiftKey && event.key.toLowerCase() === "s") {
    event.preventDefault();
    if (isDrawer()) c.isListOpen = !c.isListOpen;
    else /** @type {HTMLElement | null} */ (document.querySelector("#chats input"))?.focus();
    c.changed();
  } else if (command && event.shiftKey && event.key.toLowerCase() === "l") {
    event.preventDefault();
    document.getElementById("message")?.focus();
  } else if (event.key === "?" && !isField && !c.dialog) {
    event.preventDefault();
    c.show({ kind: "help" });
  } else if (event.key === "Tab" && c.isListOpen && isDrawer()) keepInList(event);
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
document.addEventListener("touchend", ({ changedTouches }) => { if (c.isListOpen && swipeFrom - changedTouches[0].clientX > 60) closeList(); }, { passive: true });
document.addEventListener("keydown", onKey);
c.onDraw = () => render(html`<${App} tick=${{}} />`, root);
c.onDraw();
void c.start();
