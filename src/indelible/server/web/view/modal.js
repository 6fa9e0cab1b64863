// A <dialog> over the page: its field has the focus; Escape closes it and the focus returns to where it was. Toasts are
// then inside it, because nothing below a dialog can be read out or clicked.
//
// A dialog in which something was typed keeps it (`useKept`): Escape, a click beside it or a reload loses nothing. It is
// there when the dialog is opened again, until it is saved or discarded, and both ways out can be undone.
//
// Must stay true (tests/e2e/test_page_drafts.py): a dialog loses no words.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { icon } from "./icons.js";
import { show, state, toasts, unsaved } from "./page.js";

/** @import { Child } from "./html.js" */
/** @import { Dialog } from "./state.js" */

const FIELD = "textarea, input:not([type=radio]), input:checked, button.primary";

/** @param {{label: string, className?: string, onLeave?: () => void, children?: Child}} props  `onLeave`: closed, and nothing was saved */
export function Modal({ label, className = "", onLeave, children }) {
  const place = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useLayoutEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    place.current?.showModal();
    /** @type {HTMLElement | null | undefined} */ (place.current?.querySelector(FIELD))?.focus();
    return () => before?.isConnected && before.focus();
  }, []);
  const isLeft = useRef(false); // Escape is two events
  const close = () => {
    if (isLeft.current) return;
    isLeft.current = true;
    show(null);
    onLeave?.();
  };
  return html`<dialog ref=${place} class=${className} aria-label=${label} onClose=${close} onCancel=${close}
    onPointerDown=${(/** @type {Event} */ event) => { if (event.target === place.current) close(); }}>
    <div class="sheet">
      <header><h2>${label}</h2><button type="button" class="quiet" aria-label="Close" onClick=${close}>${icon("close")}</button></header>
      ${children}
    </div>
    <${ToastList} />
  </dialog>`;
}

export function ToastList() {
  return html`<div class="toasts" aria-live="polite">${state.toasts.map((toast) => html`<div key=${toast.id} class="toast"><span>${toast.text}</span>
    ${toast.undo && html`<button type="button" class="link" onClick=${() => { toast.undo?.(); toasts.close(toast.id); }}>Undo</button>`}</div>`)}</div>`;
}

/**
 * A text of a dialog, and what was typed in its place and not saved yet.
 * @param {{name: string, stored: string | null, dialog: Dialog, what: string}} options
 *   `name`: under which it is kept; `stored`: null if it is not known yet; `dialog`: opens it again
 */
export function useKept({ name, stored, dialog, what }) {
  const [typed, setTyped] = useState(/** @type {string | null} */ (unsaved.get(name) || null));
  const [isOld, setOld] = useState(typed !== null); // it was typed before this dialog was opened
  useEffect(() => {
    void unsaved.fetch(name).then((found) => { // perhaps of a tab that was closed
      if (found && typed === null && found === unsaved.get(name)) { setTyped(found); setOld(true); }
    });
  }, []);
  const isEarly = useRef(false); // it is typed before it is known what stands there: at the end of that
  const type = (/** @type {string} */ text) => { setTyped(text); unsaved.set(name, text === stored ? "" : text); };
  useLayoutEffect(() => {
    if (stored === null || !isEarly.current) return;
    isEarly.current = false;
    if (typed) type(stored + typed);
    else setTyped(null);
  }, [stored]);
  const isChanged = typed !== null && typed !== stored;
  const undo = () => {
    unsaved.set(name, typed ?? "");
    setTyped(typed); // the dialog may still be open
    show(dialog);
  };
  return {
    text: typed ?? stored ?? "",
    type: (/** @type {string} */ text) => {
      isEarly.current ||= stored === null && typed === null;
      type(text);
    },
    forget: () => unsaved.clear(name),
    leave: () => { if (isChanged) toasts.show(`The ${what} was not saved. What you typed is kept.`, undo); },
    note: isOld && isChanged && html`<p class="faint">Not saved yet. <button type="button" class="link" onClick=${() => {
      setTyped(null);
      unsaved.clear(name);
      toasts.show("Your changes were discarded.", undo);
    }}>Discard changes</button></p>`,
  };
}
