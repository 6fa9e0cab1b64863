// What can be done with a chat as a whole: rename, pin, archive, delete, fork, export, import. Each can be undone.

export const UNDO_MS = 6000;
const FLAGS = ["archived", "pinned"];

export class ChatActions {
  /** @param {import("./controller.js").Controller} controller */
  constructor(controller) {
    this.controller = controller;
    /** @type {Map<string, any>} */ this.deletions = new Map(); // chat -> timer
    this.isForking = false; // a second click makes no second chat
  }

  /** @param {string} id @param {any} changes @param {string} [text] */
  async update(id, changes, text) {
    const { controller } = this;
    const before = controller.list.find(id) ?? (controller.chat?.id === id ? controller.chat.details : {});
    const back = Object.fromEntries(Object.keys(changes).map((name) => [name, before[name] ?? (FLAGS.includes(name) ? false : null)]));
    const show = (/** @type {any} */ values) => {
      controller.list.patch(id, values);
      if (controller.chat?.id === id) controller.chat.details = { ...controller.chat.details, ...values };
    };
    show(changes);
    const done = await controller.attempt(() => controller.api.updateChat(id, changes));
    if (!done) show(back);
    else if (text) controller.toast(text, () => void this.update(id, back));
    controller.list.refresh();
    controller.changed();
    return Boolean(done);
  }

  /** Delete a chat after a while in which it can be undone. @param {string} id */
  remove(id) {
    this.controller.list.hide(id, true);
    const wasShown = this.controller.chat?.id === id;
    if (wasShown) this.controller.go(null);
    this.controller.toast("Chat deleted.", () => {
      clearTimeout(this.deletions.get(id));
      this.deletions.delete(id);
      this.controller.list.hide(id, false);
      if (wasShown) this.controller.go(id);
    });
    this.deletions.set(id, setTimeout(async () => {
      this.deletions.delete(id);
      if ((await this.controller.attempt(() => this.controller.api.deleteChat(id))) === undefined) this.controller.list.hide(id, false);
      this.controller.list.refresh();
    }, UNDO_MS));
  }

  /** The page is being left: what was deleted is deleted. */
  async finishDeletions() {
    const begun = [...this.deletions];
    this.deletions.clear();
    await Promise.allSettled(begun.map(([id, timer]) => {
      clearTimeout(timer);
      return this.controller.api.request("DELETE", `chats/${id}`, { keepalive: true });
    }));
  }

  /** A new chat with everything up to this item. @param {any} item */
  async fork(item) {
    const { chat, api, list } = this.controller;
    if (!chat || this.isForking) return;
    this.isForking = true;
    const made = await this.controller.attempt(() => api.forkChat(chat.id, item.messages.at(-1).id));
    this.isForking = false;
    if (!made) return;
    this.controller.go(made.id);
    list.refresh();
    this.controller.toast("Forked: this chat continues from the same point.");
  }

  /** @param {string} id @param {"md" | "json"} format */
  export(id, format) {
    const link = document.createElement("a");
    link.href = this.controller.api.url(`chats/${id}/export?format=${format}`);
    link.download = "";
    link.click();
  }

  /** @param {File} file */
  async import(file) {
    const made = await this.controller.attempt(async () => this.controller.api.importChat(JSON.parse(await file.text())));
    if (made) this.controller.go(made.id);
    this.controller.list.refresh();
  }
}
