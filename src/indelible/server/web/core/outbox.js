// What the user sent and the server has not acknowledged: kept in the browser's storage until it has.
//
// Every entry has an idempotency key from its first moment, so it may be sent again after a lost response, a reload or a
// crash of the browser, by any tab, and is stored once. Entries of a chat are sent in order; a message to a chat that
// does not exist yet waits until the entry before it has created the chat. A refusal (4xx) keeps the entry and asks the
// user; a server that is away only delays it. An entry belongs to a user: another user of this browser neither sees nor sends
// it. The user of the last visit is shown what they left, but nothing is sent before the server has said who is logged in
// (`setUser`): another tab may have logged in somebody else. Whatever waits asks for that again (`confirm`). In a browser in
// which no user was ever known, entries are stored as nobody's, and become those of the first user that the server names;
// in any other they are held in memory until then.
//
// Must stay true (tests/web/outbox.test.mjs): an entry leaves the outbox only after a 2xx response or by the user's hand.

import { describe, isLost, newKey, statusOf } from "./api.js";

/** @import { Api } from "./api.js" */
/** @import { Delivered, NewChat, NewMessage } from "./shapes.js" */

const PREFIX = "indelible:outbox:";
const MADE = "indelible:made:";
const KNOWN = "indelible:known"; // a user has been known in this browser
const LONGEST_WAIT_MS = 5000;
const AWAY = "the server is unreachable. It will be sent when it is back.";

/** @typedef {NewMessage & {create?: NewChat}} Body  `create`: of the chat that it may create */
/**
 * @typedef {object} Entry
 * @property {string} key  also the idempotency key
 * @property {string} chat  an id, or `new:…`
 * @property {string} text
 * @property {Body} body
 * @property {number} at
 * @property {"sending" | "waiting" | "refused" | "sent"} state  `sent`: the server has it, and it is not seen yet (delivery.js)
 * @property {string} [error]
 * @property {boolean} [isUnknown]  the server has failed: it may have stored the message
 * @property {string | null} user  who wrote it: nobody else sees or sends it; null: not known yet
 */

export class Outbox {
  /**
   * @param {{api: Pick<Api, "sendMessage" | "createChat">, storage: Storage, user?: string | null, locks?: LockManager, onChange?: () => void,
   *   confirm?: () => Promise<unknown>, onDelivered?: (entry: Entry, response: Delivered) => void, setTimer?: (wake: () => void, ms: number) => unknown}} options
   */
  constructor({ api, storage, user = "", locks, onChange = () => {}, confirm = async () => {}, onDelivered = () => {}, setTimer = (wake, ms) => setTimeout(wake, ms) }) {
    this.api = api;
    this.storage = storage;
    this.locks = locks;
    this.onChange = onChange;
    this.confirm = confirm; // asks the server who is logged in, and calls `setUser` if it says so
    this.onDelivered = onDelivered;
    this.setTimer = setTimer;
    /** @type {Map<string, Entry>} */ this.entries = new Map();
    /** @type {Promise<void> | null} */ this.flushing = null;
    this.again = false;
    this.waitMs = 300;
    this.waits = false;
    /** @type {string | null} */ this.user = user; // of the last visit, or who is logged in
    this.isConfirmed = false; // the server has said that this user is logged in
    this.load();
  }

  /** Read what other tabs, or an earlier visit, have left. */
  load() {
    /** @type {Entry[]} */
    const found = [];
    for (let at = 0; at < this.storage.length; at += 1) {
      const name = this.storage.key(at);
      if (!name?.startsWith(PREFIX)) continue;
      try {
        found.push(JSON.parse(this.storage.getItem(name) ?? ""));
      } catch {
        // Not ours.
      }
    }
    const kept = [...this.entries.values()].filter(({ key }) => this.unsaved?.has(key));
    this.entries = new Map([...found, ...kept].sort((a, b) => a.at - b.at).map((entry) => [entry.key, entry]));
  }

  /** Entries that the storage had no room for, or that nobody may find: they live as long as the tab. @type {Set<string>} */
  unsaved = new Set();

  /** Chats that were created from this tab: the storage may have no room. @type {Map<string, string>} */
  made = new Map();

  /** The server has said who is logged in. @param {string} user */
  setUser(user) {
    const isFirst = this.storage.getItem(KNOWN) === null;
    this.load(); // another tab may have left, or claimed, some of it
    for (const entry of this.entries.values()) {
      if (entry.user === null && (isFirst || this.unsaved.has(entry.key))) this.#save(Object.assign(entry, { user }));
    }
    this.#note(KNOWN, "yes");
    this.user = user;
    this.isConfirmed = true;
    void this.flush();
  }

  /** The entries of this user, oldest first. @returns {Entry[]} */
  get own() {
    return [...this.entries.values()].filter(({ user }) => user === this.user);
  }

  /** @param {string} chat @returns {Entry[]} */
  list(chat) {
    return this.own.filter((entry) => this.resolve(entry.chat) === chat || entry.chat === chat);
  }

  /** The id of a chat that was created from here, or what was given. @param {string} chat */
  resolve(chat) {
    return chat.startsWith("new:") ? (this.made.get(chat) ?? this.storage.getItem(MADE + chat) ?? chat) : chat;
  }

  /** @param {string} chat @param {string} text @param {Body} body @param {number} [at] @returns {Entry} */
  add(chat, text, body, at = this.#nextTime()) {
    /** @type {Entry} */
    const entry = { key: newKey(), chat, text, body, at, state: "sending", user: this.user };
    this.entries.set(entry.key, entry);
    this.#save(entry);
    this.onChange();
    void this.flush();
    return entry;
  }

  #nextTime() {
    const last = [...this.entries.values()].at(-1)?.at ?? 0;
    return Math.max(Date.now(), last + 1);
  }

  /** @param {string} key */
  retry(key) {
    const entry = this.entries.get(key);
    if (!entry) return;
    if (entry.state === "waiting") return void this.flush();
    if (entry.isUnknown) { // under its key, or it might be stored twice
      this.#save(Object.assign(entry, { state: "sending" }));
      this.onChange();
      return void this.flush();
    }
    // The server may repeat its refusal to the same key.
    this.remove(key);
    this.add(entry.chat, entry.text, entry.body, entry.at); // before what was written after it
  }

  /** @param {string} key @returns {Entry | undefined} */
  remove(key) {
    const entry = this.entries.get(key);
    this.entries.delete(key);
    this.unsaved.delete(key);
    this.storage.removeItem(PREFIX + key);
    this.onChange();
    return entry;
  }

  /** Send everything that waits. @returns {Promise<void>} */
  flush() {
    if (!this.isConfirmed) return this.#askWhoItIs();
    if (this.flushing) {
      this.again = true;
      return this.flushing;
    }
    const run = async () => {
      do {
        this.again = false;
        await this.#sendAll();
      } while (this.again);
    };
    const locked = this.locks ? this.locks.request("indelible:outbox", run) : run();
    this.flushing = Promise.resolve(locked).finally(() => (this.flushing = null));
    return this.flushing;
  }

  async #askWhoItIs() {
    if (!this.own.length) return;
    await this.confirm();
    if (this.isConfirmed) return;
    for (const entry of this.own.filter(({ state }) => state === "sending")) this.#save(Object.assign(entry, { state: "waiting", error: AWAY }));
    this.onChange();
    this.#waitAndFlush();
  }

  async #sendAll() {
    this.load(); // another tab may have sent some of it
    const blocked = new Set();
    for (const entry of this.own) {
      if (!this.isConfirmed) return this.#waitAndFlush();
      if (!this.entries.has(entry.key) || entry.user !== this.user) continue;
      if (entry.state === "refused" || blocked.has(entry.chat)) {
        blocked.add(entry.chat);
        continue;
      }
      try {
        const response = await this.#send(entry);
        this.waitMs = 300;
        this.onDelivered(entry, response);
        this.remove(entry.key);
      } catch (error) {
        const status = statusOf(error);
        const isAway = isLost(error) || status === 401 || status === 429;
        entry.state = isAway ? "waiting" : "refused";
        entry.isUnknown = status >= 500;
        entry.error = isAway ? AWAY : describe(error);
        if (status === 401) {
          entry.error = "log in again. It will be sent then.";
          this.isConfirmed = false; // whoever logs in next may be somebody else
        }
        if (status === 429) entry.error = "the server asks to slow down. It will be sent in a moment.";
        if (this.entries.has(entry.key)) { // not taken back meanwhile
          this.entries.set(entry.key, entry); // `load` may have put another in its place
          this.#save(entry);
        }
        this.onChange();
        if (isAway) return this.#waitAndFlush();
        blocked.add(entry.chat);
      }
    }
  }

  #waitAndFlush() {
    if (this.waits) return;
    this.waits = true;
    this.setTimer(() => {
      this.waits = false;
      void this.flush();
    }, this.waitMs);
    this.waitMs = Math.min(2 * this.waitMs, LONGEST_WAIT_MS);
  }

  /** @param {Entry} entry */
  async #send(entry) {
    const chat = this.resolve(entry.chat);
    if (!chat.startsWith("new:")) {
      const { create, ...body } = entry.body;
      return this.api.sendMessage(chat, body, entry.key);
    }
    const { create = {}, model, text, content } = entry.body;
    const made = await this.api.createChat({ ...create, message: content ?? text, ...(model ? { model } : {}) }, entry.key);
    this.made.set(entry.chat, made.id);
    this.#note(MADE + entry.chat, made.id);
    return made;
  }

  /** @param {Entry} entry */
  #save(entry) {
    const isHidden = entry.user === null && this.storage.getItem(KNOWN) !== null;
    if (!isHidden && this.#note(PREFIX + entry.key, JSON.stringify(entry))) this.unsaved.delete(entry.key);
    else this.unsaved.add(entry.key);
  }

  /** Whether there was room for it. @param {string} name @param {string} value */
  #note(name, value) {
    try {
      this.storage.setItem(name, value);
      return true;
    } catch {
      return false;
    }
  }
}
