// A <dialog> over the page: Escape closes it and the focus returns to where it was. Toasts are then inside it, because
// nothing below a dialog can be read out or clicked.

import { html, useLayoutEffect, useRef } from "./html.js";
import { icon } from "./icons.js";

/** @param {{c: import("./controller.js").Controller, label: string, className?: string, children?: any}} props */
export function Modal({ c, label, className = "", children }) {
  const place = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useLayoutEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    place.current?.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  const close = () => c.show(null);
  return html`<dialog ref=${place} class=${className} aria-label=${label} onClose=${close} onCancel=${close}
    onPointerDown=${(/** @type {any} */ event) => { if (event.target === place.current) close(); }}>
    <div class="sheet">
      <header><h2>${label}</h2><button type="button" class="quiet" aria-label="Close" onClick=${close}>${icon("close")}</button></header>
      ${children}
    </div>
    <${Toasts} c=${c} />
  </dialog>`;
}

/** @param {{c: import("./controller.js").Controller}} props */
export function Toasts({ c }) {
  return html`<div class="toasts" aria-live="polite">${c.toasts.map((toast) => html`<div key=${toast.id} class="toast"><span>${toast.text}</span>
    ${toast.undo && html`<button type="button" class="link" onClick=${() => { toast.undo?.(); c.closeToast(toast.id); }}>Undo</button>`}</div>`)}</div>`;
}
