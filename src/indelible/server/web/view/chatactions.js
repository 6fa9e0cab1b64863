// What can be done with a chat as a whole: rename, pin, archive, delete, export, import. Each can be undone.

export const UNDO_MS = 6000;

export class ChatActions {
  /** @param {import("./controller.js").Controller} controller */
  constructor(controller) {
    this.controller = controller;
  }

  /** @param {string} id @param {any} changes @param {string} [text] */
  async update(id, changes, text) {
    const before = this.controller.list.find(id);
    this.controller.list.patch(id, changes);
    if (this.controller.chat?.id === id) this.controller.chat.details = { ...this.controller.chat.details, ...changes };
    const done = await this.controller.attempt(() => this.controller.api.updateChat(id, changes));
    if (!done && before) this.controller.list.patch(id, before);
    if (done && text) {
      const back = Object.fromEntries(Object.keys(changes).map((name) => [name, before?.[name] ?? null]));
      this.controller.toast(text, () => void this.update(id, back));
    }
    this.controller.list.refresh();
    this.controller.changed();
  }

  /** Delete a chat after a while in which it can be undone. @param {string} id */
  remove(id) {
    this.controller.list.hide(id, true);
    const wasShown = this.controller.chat?.id === id;
    if (wasShown) this.controller.go(null);
    let isUndone = false;
    this.controller.toast("Chat deleted.", () => {
      isUndone = true;
      this.controller.list.hide(id, false);
      if (wasShown) this.controller.go(id);
    });
    setTimeout(async () => {
      if (isUndone) return;
      if ((await this.controller.attempt(() => this.controller.api.deleteChat(id))) === undefined) this.controller.list.hide(id, false);
      this.controller.list.refresh();
    }, UNDO_MS);
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
