// Files on their way into a message: each is uploaded at once, and the message names the stored ones. Like a draft, they
// belong to the chat in which they were attached. A file that could not be uploaded stays until it is, or is removed.

import { isLost, newKey } from "../core/api.js";

const REFUSED_FOR_GOOD = [413, 415, 422]; // its size, type or name: to try again would change nothing

export class Attachments {
  /** @param {import("./controller.js").Controller} controller */
  constructor(controller) {
    this.controller = controller;
    /** @type {Map<string, any[]>} */ this.byChat = new Map();
  }

  get isAvailable() {
    return this.controller.has("POST /files");
  }

  /** @returns {any[]} */
  get items() {
    return this.byChat.get(this.controller.draftName) ?? [];
  }

  set items(items) {
    this.byChat.set(this.controller.draftName, items);
  }

  get isUploading() {
    return this.items.some(({ state }) => state === "uploading");
  }

  /** One that is not stored: the message must not go without it. */
  get failed() {
    return this.items.find(({ state }) => state === "failed");
  }

  /** The blocks of those that are stored. */
  get blocks() {
    return this.items.filter(({ id }) => id).map(({ id, media_type, name }) => ({ type: "file", file_id: id, media_type, name }));
  }

  clear() {
    this.items = [];
  }

  /** The chat in which they were attached has been created. @param {string} chat */
  move(chat) {
    const { items } = this;
    this.clear();
    this.byChat.set(chat, items);
  }

  /** @param {Iterable<File>} files */
  add(files) {
    if (!this.isAvailable) return;
    for (const file of files) {
      const entry = { key: newKey(), name: file.name, size: file.size, media_type: file.type, state: "uploading", id: null, error: "", file };
      this.items = [...this.items, entry];
      this.upload(entry);
    }
  }

  /** @param {any} entry */
  upload(entry) {
    Object.assign(entry, { state: "uploading", error: "", isRefused: false });
    void this.controller.api.uploadFile(entry.file).then(
      (stored) => Object.assign(entry, stored, { state: "ready", file: null }),
      (error) => Object.assign(entry, { state: "failed", error: isLost(error) ? "The server is unreachable." : error.message, isRefused: REFUSED_FOR_GOOD.includes(error.status) }),
    ).finally(() => this.controller.changed());
    this.controller.changed();
  }

  /** Files of a message that was not sent. @param {any[]} blocks */
  restore(blocks) {
    const files = blocks.filter(({ type }) => type === "file");
    this.items = [...this.items, ...files.map(({ file_id, name, media_type }) => ({ key: newKey(), id: file_id, name, media_type, size: 0, state: "ready", error: "" }))];
  }

  /** @param {string} key */
  remove(key) {
    this.items = this.items.filter((file) => file.key !== key);
    this.controller.changed();
  }
}
