// What can be done with a message: edit it, regenerate a reply, switch to another version.
//
// A message is edited in its chat: who looks at another chat meanwhile finds the editor, and what was written in it, again.
// After a reload the editor is closed, and has the words when it is opened. To cancel it can be undone.

import { plainText } from "../core/thread.js";

/** @import { Api } from "../core/api.js" */
/** @import { Drafts } from "../core/drafts.js" */
/** @import { Message } from "../core/shapes.js" */
/** @import { Item } from "../core/thread.js" */
/** @import { Slice } from "./state.js" */
/** @import { Toasts } from "./toasts.js" */
/** @import { Writing } from "./writing.js" */
/** @typedef {{id: string, text?: string, isNew?: boolean}} Edit  `isNew`: its editor takes the focus when it is drawn */

export class MessageActions {
  /** @param {{store: Slice<"place" | "chat" | "edits">, api: Api, toasts: Toasts, unsaved: Drafts, writing: Pick<Writing, "keep">}} parts */
  constructor({ store, api, toasts, unsaved, writing }) {
    this.store = store;
    this.api = api;
    this.toasts = toasts;
    this.unsaved = unsaved;
    this.writing = writing;
  }

  /** The message that is being edited in the chat that is shown. */
  get editing() {
    return this.store.state.edits.get(this.store.state.place) ?? null;
  }

  /** @param {string} chat @param {Edit | null} editing */
  #set(chat, editing) {
    if (editing) this.store.state.edits.set(chat, editing);
    else this.store.state.edits.delete(chat);
    this.store.changed();
  }

  /** @param {Message} message */
  begin({ id }) {
    const { editing, store: { state: { place } } } = this;
    if (editing?.text && editing.id !== id) this.writing.keep(place, editing.text);
    this.#set(place, { id, text: this.unsaved.get(`edit:${id}`) || undefined, isNew: true });
  }

  /** @param {string} id @param {string} text */
  type(id, text) {
    this.store.state.edits.set(this.store.state.place, { id, text });
    this.unsaved.set(`edit:${id}`, text);
  }

  /** @param {Message} message */
  cancel({ id, blocks }) {
    const { editing, store: { state: { place } } } = this;
    this.#set(place, null);
    this.unsaved.clear(`edit:${id}`);
    if (!editing?.text || editing.text === plainText(blocks)) return;
    this.toasts.show("Your changes were discarded.", () => {
      this.unsaved.set(`edit:${id}`, editing.text ?? "");
      this.#set(place, { ...editing, isNew: true });
    });
  }

  /** @param {Message} message @param {string} text */
  async edit({ id, blocks }, text) {
    const { chat, place } = this.store.state;
    this.#set(place, null);
    if (!chat || !text.trim()) return;
    const kept = blocks.filter(({ type }) => type === "file");
    const body = kept.length ? { content: [{ type: "text", text }, ...kept] } : { text };
    const done = await this.toasts.attempt(() => this.api.editMessage(chat.id, id, body));
    if (done) return this.unsaved.clear(`edit:${id}`);
    if (this.store.state.edits.has(chat.id)) this.writing.keep(chat.id, text);
    else this.#set(chat.id, { id, text }); // what was written stays
  }

  /** @param {Item} item @param {string} [model] */
  regenerate(item, model) {
    const { chat } = this.store.state;
    const first = item.messages.find(({ role }) => role === "assistant" || role === "user");
    if (chat && first) void this.toasts.attempt(() => this.api.regenerate(chat.id, first.id, model));
  }

  /** @param {string} messageId */
  switchBranch(messageId) {
    const { chat } = this.store.state;
    if (chat) void this.toasts.attempt(() => this.api.switchBranch(chat.id, messageId));
  }

  /** Ask again, perhaps another model. @param {string} [model] */
  retry(model) {
    const { chat } = this.store.state;
    if (chat) void this.toasts.attempt(() => this.api.retry(chat.id, model));
  }

  /** Continue a reply that was stopped or cut. */
  continueReply() {
    const { chat } = this.store.state;
    if (chat) void this.toasts.attempt(() => this.api.continueReply(chat.id));
  }

  /** Whether the last question has no visible reply, or one that only a retry continues (store/commands/change.py). */
  get canRetry() {
    const last = this.store.state.chat?.messages.findLast(({ role }) => role === "user" || role === "assistant");
    return last?.role === "user" || last?.reason === "max_steps" || (last?.reason === "length" && !last.partial); // it has only thought
  }

  /** Stop waiting for a retry, and ask at once, perhaps another model. @param {string} [model] */
  async retryNow(model) {
    const { chat } = this.store.state;
    if (!chat) return;
    await this.toasts.attempt(async () => {
      if (chat.busy) await this.api.interrupt(chat.id, chat.turn, 10);
      await this.api.retry(chat.id, model);
    });
  }
}
