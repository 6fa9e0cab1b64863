// A button that opens a list of actions. Arrow keys move, Escape closes and returns to the button.
//
// The list is a popover, so that nothing that scrolls (the chats) cuts it off; it opens to the side that has room for it.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";

const GAP_PX = 4;

/** @param {HTMLElement} list @param {DOMRect} button @param {boolean} prefersUp */
function placeAt(list, button, prefersUp) {
  list.style.maxHeight = "";
  const { offsetWidth: width, offsetHeight: height } = list;
  const [above, below] = [button.top - 2 * GAP_PX, innerHeight - button.bottom - 2 * GAP_PX];
  const isUp = prefersUp ? above >= height || above > below : below < height && above > below;
  const shown = Math.min(height, isUp ? above : below);
  const start = prefersUp ? button.left : button.right - width;
  list.style.maxHeight = `${shown}px`;
  list.style.top = `${isUp ? button.top - GAP_PX - shown : button.bottom + GAP_PX}px`;
  list.style.left = `${Math.max(GAP_PX, Math.min(start, innerWidth - width - GAP_PX))}px`;
}

/** @import { Child } from "./html.js" */
/** @typedef {{text: string, act: () => void, icon?: Child, checked?: boolean, danger?: boolean}} MenuEntry */

/**
 * @param {{label: string, button: Child, entries: (MenuEntry | null | false | undefined)[],
 *   className?: string, up?: boolean}} props
 */
export function Menu({ label, button, entries, className = "quiet", up = false }) {
  const [isOpen, setOpen] = useState(false);
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const shown = entries.filter((entry) => entry !== null && entry !== false && entry !== undefined);
  const findAll = () => /** @type {HTMLElement[]} */ ([...(place.current?.querySelectorAll('[role^="menuitem"]') ?? [])]);
  const focusAt = (/** @type {number} */ at) => findAll().at(at)?.focus();
  const focus = (/** @type {number} */ step) => {
    const all = findAll();
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    all[(at + step + all.length) % all.length]?.focus();
  };
  const close = (/** @type {boolean} */ back) => {
    setOpen(false);
    if (back) place.current?.querySelector("button")?.focus();
  };
  useLayoutEffect(() => {
    const list = place.current?.querySelector("ul");
    const button = place.current?.querySelector("button");
    if (!isOpen || !list || !button) return;
    if (list.showPopover && !list.matches(":popover-open")) list.showPopover(); // older browsers: it lacks, or throws if it is shown
    const follow = () => placeAt(list, button.getBoundingClientRect(), up);
    follow();
    addEventListener("resize", follow);
    document.addEventListener("scroll", follow, { capture: true, passive: true });
    return () => {
      removeEventListener("resize", follow);
      document.removeEventListener("scroll", follow, { capture: true });
    };
  }, [isOpen, shown.length]);
  useEffect(() => {
    if (!isOpen) return;
    /** @type {HTMLElement | null | undefined} */ (place.current?.querySelector('[role^="menuitem"]'))?.focus();
    const away = (/** @type {Event} */ event) => { if (!place.current?.contains(/** @type {Node} */ (event.target))) setOpen(false); };
    document.addEventListener("pointerdown", away);
    document.addEventListener("focusin", away);
    return () => {
      document.removeEventListener("pointerdown", away);
      document.removeEventListener("focusin", away);
    };
  }, [isOpen]);
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (!isOpen) return;
    if (event.key === "Escape") { event.stopPropagation(); close(true); }
    else if (event.key === "ArrowDown") { event.preventDefault(); focus(1); }
    else if (event.key === "ArrowUp") { event.preventDefault(); focus(-1); }
    else if (event.key === "Home") { event.preventDefault(); focusAt(0); }
    else if (event.key === "End") { event.preventDefault(); focusAt(-1); }
  };
  return html`<span class="menu" ref=${place} onKeyDown=${key}>
    <button type="button" class=${className} aria-haspopup="menu" aria-expanded=${isOpen ? "true" : "false"} aria-label=${label} title=${label}
      onClick=${(/** @type {Event} */ event) => { event.preventDefault(); event.stopPropagation(); setOpen(!isOpen); }}>${button}</button>
    ${isOpen && html`<ul role="menu" aria-label=${label} popover="manual">${shown.map((entry) => html`<li role="none">
      <button type="button" tabindex="-1" role=${entry.checked === undefined ? "menuitem" : "menuitemradio"}
        aria-checked=${entry.checked === undefined ? undefined : entry.checked ? "true" : "false"} class=${entry.danger ? "danger" : undefined}
        onClick=${(/** @type {Event} */ event) => { event.preventDefault(); event.stopPropagation(); close(true); entry.act(); }}>
        ${entry.icon}<span>${entry.text}</span>
      </button></li>`)}</ul>`}
  </span>`;
}
