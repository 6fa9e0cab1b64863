// What can be done with a message: edit it, regenerate a reply, switch to another version.
//
// A message is edited in its chat: who looks at another chat meanwhile finds the editor, and what was written in it, again.

export class MessageActions {
  /** @param {import("./controller.js").Controller} controller */
  constructor(controller) {
    this.controller = controller;
    /** @type {Map<string, {id: string, text?: string}>} */ this.edits = new Map(); // chat -> the message that is being edited there
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
    this.editing = { id: message.id };
    controller.changed();
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
    if (done) return;
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
}
