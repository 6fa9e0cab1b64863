// What was chosen for the chat that does not exist yet: its model and its system prompt.
//
// The system prompt waits for the next chat that is begun in this tab, over a reload too, since somebody has typed it.
// Any of the first messages of a chat may be the one that creates it (core/outbox.js), so all of them carry it.
//
// Must stay true (tests/e2e/test_page_drafts.py): the prompt goes with one chat, and comes back with a message that was not sent.

/** @import { Drafts } from "../core/drafts.js" */
/** @import { Body, Entry, Outbox } from "../core/outbox.js" */
/** @import { Slice } from "./state.js" */

const SYSTEM = "next-system";

export class NewChat {
  /** @param {{store: Slice<"nextModel">, unsaved: Drafts, outbox: Outbox}} parts */
  constructor({ store, unsaved, outbox }) {
    this.store = store;
    this.unsaved = unsaved;
    this.outbox = outbox;
  }

  get system() {
    return this.unsaved.get(SYSTEM);
  }

  set system(text) {
    if (text) this.unsaved.set(SYSTEM, text);
    else this.unsaved.clear(SYSTEM);
    this.store.changed();
  }

  /** Of a message that may create the chat at this place. @param {string} place @returns {Body} */
  take(place) {
    const { system, outbox, store: { state: { nextModel: model } } } = this;
    const known = outbox.list(place)[0]?.body.create;
    if (!known && system) this.system = "";
    return { ...(model ? { model } : {}), create: known ?? (system ? { system } : {}) };
  }

  /** A message was taken out of the outbox. @param {Entry} entry */
  putBack({ chat, body }) {
    if (body.create?.system && !this.outbox.list(chat).length) this.system ||= body.create.system;
  }
}
