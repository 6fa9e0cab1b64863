// What the user has typed and not sent: in the browser with every key, on the server a moment later.
//
// The browser's copy wins while it exists, since it is never older than the server's. Sending clears both.
// A server without drafts (or one that is away) changes nothing for the user.
//
// Every text belongs to a user. Another user of the same browser neither sees nor sends it, and who logs out finds it
// again after the next login. Until it is known who is logged in (`setUser`), texts are held in memory.

import { isLost } from "./api.js";

const PREFIX = "indelible:draft:";
export const DELAY_MS = 800;
const RETRY_MS = 5000;

export class Drafts {
  /**
   * @param {{storage: Storage, user?: string | null, save?: (chat: string, text: string) => Promise<any>, load?: (chat: string) => Promise<{text: string}>,
   *   setTimer?: (wake: () => void, ms: number) => any, clearTimer?: (timer: any) => void}} options
   */
  constructor({ storage, user = "", save, load, setTimer = (wake, ms) => setTimeout(wake, ms), clearTimer = (timer) => clearTimeout(timer) }) {
    this.storage = storage;
    /** @type {string | null} */ this.user = user;
    /** @type {Map<string, string>} */ this.held = new Map(); // texts of a user who is not known yet
    this.save = save;
    this.load = load;
    this.setTimer = setTimer;
    this.clearTimer = clearTimer;
    /** @type {Map<string, any>} */ this.timers = new Map();
    /** @type {Set<string>} */ this.stored = new Set(); // the server has a text
  }

  /** @param {string} user */
  setUser(user) {
    this.user = user;
    this.stored.clear();
    for (const timer of this.timers.values()) this.clearTimer(timer); // the texts of the former user are in the storage
    this.timers.clear();
    for (const [chat, text] of this.held) this.set(chat, text);
    this.held.clear();
  }

  /** @param {string} chat */
  #name(chat) {
    return `${PREFIX}${encodeURIComponent(this.user ?? "")}:${chat}`;
  }

  /** The text in this browser. @param {string} chat */
  get(chat) {
    return (this.user === null ? this.held.get(chat) : this.storage.getItem(this.#name(chat))) ?? "";
  }

  /** The server's text, if this browser has none. @param {string} chat */
  async fetch(chat) {
    if (!this.load || this.get(chat) || this.user === null) return this.get(chat);
    const { user } = this;
    const found = await this.load(chat).catch(() => null);
    if (user !== this.user) return this.get(chat);
    if (found?.text) this.stored.add(chat);
    return this.get(chat) || (found?.text ?? "");
  }

  /** @param {string} chat @param {string} text */
  set(chat, text) {
    if (this.user === null) return void this.held.set(chat, text);
    try {
      if (text) this.storage.setItem(this.#name(chat), text);
      else this.storage.removeItem(this.#name(chat));
    } catch {
      // No room: the text is still in the composer, and soon on the server.
    }
    if (!this.save) return;
    this.clearTimer(this.timers.get(chat));
    this.timers.set(chat, this.setTimer(() => this.flush(chat, text), DELAY_MS));
  }

  /** @param {string} chat @param {string} text */
  flush(chat, text) {
    this.clearTimer(this.timers.get(chat));
    this.timers.delete(chat);
    if (text) this.stored.add(chat);
    const { user } = this;
    const isStillCleared = () => !text && user === this.user && !this.timers.has(chat);
    void this.save?.(chat, text).then(
      () => { if (isStillCleared()) this.stored.delete(chat); },
      (error) => { // what was sent must not come back as a draft
        if (!isStillCleared() || !(isLost(error) || error.status === 401)) return;
        this.timers.set(chat, this.setTimer(() => this.flush(chat, this.get(chat)), RETRY_MS));
      },
    );
  }

  /** The tab is being hidden or closed: save what waits. */
  flushAll() {
    for (const chat of [...this.timers.keys()]) this.flush(chat, this.get(chat));
  }

  /** It was sent: nothing is left of it. @param {string} chat */
  clear(chat) {
    const hadTimer = this.timers.has(chat);
    const had = this.get(chat);
    this.held.delete(chat);
    this.storage.removeItem(this.#name(chat));
    if (this.save && (had || hadTimer || this.stored.has(chat))) this.flush(chat, "");
  }
}
