// What was chosen for the chat that does not exist yet: its model and its system prompt.
//
// The system prompt waits for the next chat that is begun in this tab, over a reload too, since somebody has typed it.
// Any of the first messages of a chat may be the one that creates it (core/outbox.js), so all of them carry it.
//
// Must stay true (tests/e2e/test_page_drafts.py): the prompt goes with one chat, and comes back with a message that was not sent.

const SYSTEM = "next-system";

export class NewChat {
  /** @param {import("./controller.js").Controller} controller */
  constructor(controller) {
    this.controller = controller;
    /** @type {string | undefined} */ this.model = undefined;
  }

  get system() {
    return this.controller.unsaved.get(SYSTEM);
  }

  set system(text) {
    if (text) this.controller.unsaved.set(SYSTEM, text);
    else this.controller.unsaved.clear(SYSTEM);
    this.controller.changed();
  }

  /** Of a message that may create the chat at this place. @param {string} place */
  take(place) {
    const { model, system, controller } = this;
    const known = controller.outbox.list(place)[0]?.body.create;
    if (!known && system) this.system = "";
    return { ...(model ? { model } : {}), create: known ?? (system ? { system } : {}) };
  }

  /** A message was taken out of the outbox. @param {import("../core/outbox.js").Entry} entry */
  putBack({ chat, body }) {
    if (body.create?.system && !this.controller.outbox.list(chat).length) this.system ||= body.create.system;
  }
}
