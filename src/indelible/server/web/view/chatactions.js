// What can be done with a chat as a whole: rename, pin, archive, delete, fork, export, import. Each can be undone.

import { UNDO_MS } from "./toasts.js";

/** @import { Api } from "../core/api.js" */
/** @import { Details } from "../core/shapes.js" */
/** @import { Item } from "../core/thread.js" */
/** @import { ChatList } from "./chatlist.js" */
/** @import { Navigation } from "./navigation.js" */
/** @import { Slice } from "./state.js" */
/** @import { Toasts } from "./toasts.js" */

const FLAGS = ["archived", "pinned"];

export class ChatActions {
  /** @param {{store: Slice<"chat">, api: Api, toasts: Toasts, list: ChatList, navigation: Pick<Navigation, "go">}} parts */
  constructor({ store, api, toasts, list, navigation }) {
    this.store = store;
    this.api = api;
    this.toasts = toasts;
    this.list = list;
    this.navigation = navigation;
    /** @type {Map<string, number>} */ this.deletions = new Map(); // chat -> timer
    this.isForking = false; // a second click makes no second chat
  }

  /** @param {string} id @param {Details} changes @param {string} [text] */
  async update(id, changes, text) {
    const { chat } = this.store.state;
    const before = /** @type {Record<string, unknown>} */ (this.list.find(id) ?? (chat?.id === id ? chat.details : {}));
    const back = Object.fromEntries(Object.keys(changes).map((name) => [name, before[name] ?? (FLAGS.includes(name) ? false : null)]));
    const show = (/** @type {Details} */ values) => {
      this.list.patch(id, values);
      const shown = this.store.state.chat;
      if (shown?.id === id) shown.details = { ...shown.details, ...values };
    };
    show(changes);
    const done = await this.toasts.attempt(() => this.api.updateChat(id, changes));
    if (!done) show(back);
    else if (text) this.toasts.show(text, () => void this.update(id, back));
    this.list.refresh();
    this.store.changed();
    return Boolean(done);
  }

  /** Delete a chat after a while in which it can be undone. @param {string} id */
  remove(id) {
    this.list.hide(id, true);
    const wasShown = this.store.state.chat?.id === id;
    if (wasShown) this.navigation.go(null);
    this.toasts.show("Chat deleted.", () => {
      clearTimeout(this.deletions.get(id));
      this.deletions.delete(id);
      this.list.hide(id, false);
      if (wasShown) this.navigation.go(id);
    });
    this.deletions.set(id, setTimeout(async () => {
      this.deletions.delete(id);
      if ((await this.toasts.attempt(() => this.api.deleteChat(id))) === undefined) this.list.hide(id, false);
      this.list.refresh();
    }, UNDO_MS));
  }

  /** The page is being left: what was deleted is deleted. */
  async finishDeletions() {
    const begun = [...this.deletions];
    this.deletions.clear();
    await Promise.allSettled(begun.map(([id, timer]) => {
      clearTimeout(timer);
      return this.api.deleteChat(id, { keepalive: true });
    }));
  }

  /** A new chat with everything up to this item. @param {Item} item */
  async fork(item) {
    const { chat } = this.store.state;
    const last = item.messages.at(-1);
    if (!chat || !last || this.isForking) return;
    this.isForking = true;
    const made = await this.toasts.attempt(() => this.api.forkChat(chat.id, last.id));
    this.isForking = false;
    if (!made) return;
    this.navigation.go(made.id);
    this.list.refresh();
    this.toasts.show("Forked: this chat continues from the same point.");
  }

  /** @param {string} id @param {"md" | "json"} format */
  export(id, format) {
    const link = document.createElement("a");
    link.href = this.api.url(`chats/${id}/export?format=${format}`);
    link.download = "";
    link.click();
  }

  /** @param {File} file */
  async import(file) {
    const made = await this.toasts.attempt(async () => this.api.importChat(JSON.parse(await file.text())));
    if (made) this.navigation.go(made.id);
    this.list.refresh();
  }
}
