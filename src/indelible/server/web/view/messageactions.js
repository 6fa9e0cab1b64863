// What can be done with a message: edit it, regenerate a reply, switch to another version.
//
// A message is edited in its chat: who looks at another chat meanwhile finds the editor, and what was written in it, again.
// After a reload the editor is closed, and has the words when it is opened. To cancel it can be undone.

import { plainText } from "../core/thread.js";

/** @typedef {{id: string, text?: string, isNew?: boolean}} Edit  `isNew`: its editor takes the focus when it is drawn */

export class MessageActions {
  /** @param {import("./controller.js").Controller} controller */
  constructor(controller) {
    this.controller = controller;
    /** @type {Map<string, Edit>} */ this.edits = new Map(); // chat -> the message that is being edited there
  }

  /** The message that is being edited in the chat that is shown. */
  get editing() {
    return this.edits.get(this.controller.place) ?? null;
  }

  set editing(editing) {
    if (editing) this.edits.set(this.controller.place, editing);
    else this.edits.delete(this.controller.place);
  }

  /** @param {any} message */
  begin(message) {
    const { editing, controller } = this;
    if (editing?.text && editing.id !== message.id) controller.keepWords(controller.place, editing.text);
    this.editing = { id: message.id, text: controller.unsaved.get(`edit:${message.id}`) || undefined, isNew: true };
    controller.changed();
  }

  /** @param {string} id @param {string} text */
  type(id, text) {
    this.editing = { id, text };
    this.controller.unsaved.set(`edit:${id}`, text);
  }

  /** @param {any} message */
  cancel(message) {
    const { editing, controller } = this;
    const { place } = controller;
    this.editing = null;
    controller.unsaved.clear(`edit:${message.id}`);
    controller.changed();
    if (!editing?.text || editing.text === plainText(message.blocks)) return;
    controller.toast("Your changes were discarded.", () => {
      this.edits.set(place, { ...editing, isNew: true });
      controller.unsaved.set(`edit:${message.id}`, editing.text ?? "");
      controller.changed();
    });
  }

  /** @param {any} message @param {string} text */
  async edit(message, text) {
    const { controller } = this;
    const { chat } = controller;
    this.editing = null;
    controller.changed();
    if (!chat || !text.trim()) return;
    const kept = message.blocks.filter((/** @type {any} */ { type }) => type === "file");
    const body = kept.length ? { content: [{ type: "text", text }, ...kept] } : { text };
    const done = await controller.attempt(() => controller.api.editMessage(chat.id, message.id, body));
    if (done) return controller.unsaved.clear(`edit:${message.id}`);
    if (this.edits.has(chat.id)) controller.keepWords(chat.id, text);
    else this.edits.set(chat.id, { id: message.id, text }); // what was written stays
    controller.changed();
  }

  /** @param {any} item @param {string} [model] */
  regenerate(item, model) {
    const { chat, api } = this.controller;
    const first = item.messages.find((/** @type {any} */ { role }) => role === "assistant" || role === "user");
    if (chat && first) void this.controller.attempt(() => api.regenerate(chat.id, first.id, model));
  }

  /** @param {string} messageId */
  switchBranch(messageId) {
    const { chat, api } = this.controller;
    if (chat) void this.controller.attempt(() => api.switchBranch(chat.id, messageId));
  }

  /** Whether the last question has no visible reply, or one that only a retry continues (store/commands/change.py). */
  get canRetry() {
    const last = this.controller.chat?.messages.findLast(({ role }) => role === "user" || role === "assistant");
    return last?.role === "user" || last?.reason === "max_steps" || (last?.reason === "length" && !last.partial); // it has only thought
  }

  /** Stop waiting for a retry, and ask at once, perhaps another model. @param {string} [model] */
  async retryNow(model) {
    const { chat, api } = this.controller;
    if (!chat) return;
    await this.controller.attempt(async () => {
      if (chat.busy) await api.post(`chats/${chat.id}/interrupt`, { turn: chat.turn, wait_s: 10 });
      await api.retry(chat.id, model);
    });
  }
}
