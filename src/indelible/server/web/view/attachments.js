// Files on their way into a message: each is uploaded at once, and the message names the stored ones. Like a draft, they
// belong to the chat in which they were attached. A file that could not be uploaded stays until it is, or is removed.

import { describe, isLost, newKey, statusOf } from "../core/api.js";
import { draftName, has } from "./state.js";

/** @import { Api } from "../core/api.js" */
/** @import { Block } from "../core/shapes.js" */
/** @import { Slice } from "./state.js" */
/**
 * @typedef {object} Attachment
 * @property {string} key
 * @property {string} name
 * @property {number} size
 * @property {string} media_type
 * @property {"uploading" | "ready" | "failed"} state
 * @property {string | null} id  of the stored file
 * @property {string} error
 * @property {boolean} [isRefused]
 * @property {File | null} file  while it is not stored
 */

const REFUSED_FOR_GOOD = [413, 415, 422]; // its size, type or name: to try again would change nothing

export class Attachments {
  /** @param {{store: Slice<"routes" | "place" | "attached">, api: Api}} parts */
  constructor({ store, api }) {
    this.store = store;
    this.api = api;
  }

  get isAvailable() {
    return has(this.store.state, "POST /files");
  }

  /** @returns {Attachment[]} */
  get items() {
    return this.store.state.attached.get(draftName(this.store.state)) ?? [];
  }

  set items(items) {
    this.store.state.attached.set(draftName(this.store.state), items);
  }

  get isUploading() {
    return this.items.some(({ state }) => state === "uploading");
  }

  /** One that is not stored: the message must not go without it. */
  get failed() {
    return this.items.find(({ state }) => state === "failed");
  }

  /** The blocks of those that are stored. @returns {Block[]} */
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
    this.store.state.attached.set(chat, items);
  }

  /** @param {Iterable<File>} files */
  add(files) {
    if (!this.isAvailable) return;
    for (const file of files) {
      /** @type {Attachment} */
      const entry = { key: newKey(), name: file.name, size: file.size, media_type: file.type, state: "uploading", id: null, error: "", file };
      this.items = [...this.items, entry];
      this.upload(entry);
    }
  }

  /** @param {Attachment} entry */
  upload(entry) {
    const { file } = entry;
    if (!file) return;
    Object.assign(entry, { state: "uploading", error: "", isRefused: false });
    void this.api.uploadFile(file).then(
      (stored) => Object.assign(entry, stored, { state: "ready", file: null }),
      (error) => Object.assign(entry, { state: "failed", error: isLost(error) ? "The server is unreachable." : describe(error), isRefused: REFUSED_FOR_GOOD.includes(statusOf(error)) }),
    ).finally(() => this.store.changed());
    this.store.changed();
  }

  /** Files of a message that was not sent. @param {Block[]} blocks */
  restore(blocks) {
    const files = blocks.filter(({ type }) => type === "file");
    /** @type {Attachment[]} */
    const stored = files.map(({ file_id = null, name = "", media_type = "" }) => ({ key: newKey(), id: file_id, name, media_type, size: 0, state: "ready", error: "", file: null }));
    this.items = [...this.items, ...stored];
  }

  /** @param {string} key */
  remove(key) {
    this.items = this.items.filter((file) => file.key !== key);
    this.store.changed();
  }
}
