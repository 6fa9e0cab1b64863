// Files on their way into a message: each is uploaded at once, and the message names the stored ones.

import { isLost, newKey } from "../core/api.js";

export class Attachments {
  /** @param {import("./controller.js").Controller} controller */
  constructor(controller) {
    this.controller = controller;
    /** @type {any[]} */ this.items = [];
  }

  get isAvailable() {
    return this.controller.has("POST /files");
  }

  get isUploading() {
    return this.items.some(({ state }) => state === "uploading");
  }

  /** The blocks of those that are stored. */
  get blocks() {
    return this.items.filter(({ id }) => id).map(({ id, media_type, name }) => ({ type: "file", file_id: id, media_type, name }));
  }

  clear() {
    this.items = [];
  }

  /** @param {Iterable<File>} files */
  add(files) {
    if (!this.isAvailable) return;
    for (const file of files) {
      const entry = { key: newKey(), name: file.name, size: file.size, media_type: file.type, state: "uploading", id: null, error: "" };
      this.items = [...this.items, entry];
      void this.controller.api.uploadFile(file).then(
        (stored) => Object.assign(entry, stored, { state: "ready" }),
        (error) => Object.assign(entry, { state: "failed", error: isLost(error) ? "The server is unreachable." : error.message }),
      ).finally(() => {
        this.items = [...this.items];
        this.controller.changed();
      });
    }
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
