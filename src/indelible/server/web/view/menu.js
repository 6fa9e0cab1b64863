// A button that opens a list of actions. Arrow keys move, Escape closes and returns to the button.

import { html, useEffect, useRef, useState } from "./html.js";

/**
 * @param {{label: string, button: any, entries: ({text: string, act: () => void, icon?: any, checked?: boolean, danger?: boolean} | null | false | undefined)[],
 *   className?: string, up?: boolean}} props
 */
export function Menu({ label, button, entries, className = "quiet", up = false }) {
  const [isOpen, setOpen] = useState(false);
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const shown = /** @type {any[]} */ (entries.filter(Boolean));
  const focus = (/** @type {number} */ step) => {
    const all = /** @type {HTMLElement[]} */ ([...(place.current?.querySelectorAll('[role^="menuitem"]') ?? [])]);
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    all[(at + step + all.length) % all.length]?.focus();
  };
  const close = (/** @type {boolean} */ back) => {
    setOpen(false);
    if (back) place.current?.querySelector("button")?.focus();
  };
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
  };
  return html`<span class="menu" ref=${place} onKeyDown=${key}>
    <button type="button" class=${className} aria-haspopup="menu" aria-expanded=${isOpen ? "true" : "false"} aria-label=${label} title=${label}
      onClick=${(/** @type {Event} */ event) => { event.preventDefault(); event.stopPropagation(); setOpen(!isOpen); }}>${button}</button>
    ${isOpen && html`<ul role="menu" aria-label=${label} class=${up ? "up" : undefined}>${shown.map((entry) => html`<li role="none">
      <button type="button" tabindex="-1" role=${entry.checked === undefined ? "menuitem" : "menuitemradio"}
        aria-checked=${entry.checked === undefined ? undefined : entry.checked ? "true" : "false"} class=${entry.danger ? "danger" : undefined}
        onClick=${(/** @type {Event} */ event) => { event.preventDefault(); event.stopPropagation(); close(true); entry.act(); }}>
        ${entry.icon}<span>${entry.text}</span>
      </button></li>`)}</ul>`}
  </span>`;
}
