// What the user has typed and not sent: in the browser with every key, on the server a moment later.
//
// Every tab has drafts of its own: two tabs that show the same chat, or a new one, do not write over each other. A tab
// without words for a chat takes over the newest that a closed tab has left (`fetch`), never those that another open tab
// still shows (core/tab.js says which are open). The server has one draft per chat, the newest.
//
// The browser's copy wins while it exists, since it is never older than the server's. Sending clears both.
// A server without drafts (or one that is away) changes nothing for the user.
//
// Every text belongs to a user. Another user of the same browser neither sees nor sends it, and who logs out finds it
// again after the next login. Until it is known who is logged in (`setUser`), texts are held in memory.
//
// Must stay true (tests/web/drafts.test.mjs, tests/e2e/test_page_drafts.py): no tab loses words to another.

import { isLost, statusOf } from "./api.js";

const PREFIX = "indelible:draft:";
export const DELAY_MS = 800;
const RETRY_MS = 5000;

/** @typedef {{name: string, tab: string | null, text: string, at: number}} Left  what another tab has in the storage; without a tab: an earlier version of the page */

export class Drafts {
  /**
   * @param {{storage: Storage, user?: string | null, tab?: {name: string, findOpen: (names: string[]) => Promise<Set<string>>},
   *   save?: (chat: string, text: string) => Promise<unknown>, load?: (chat: string) => Promise<{text: string}>,
   *   setTimer?: (wake: () => void, ms: number) => number, clearTimer?: (timer?: number) => void}} options
   */
  constructor({ storage, user = "", tab = { name: "", findOpen: async () => new Set() }, save, load, setTimer = (wake, ms) => setTimeout(wake, ms), clearTimer = (timer) => clearTimeout(timer) }) {
    this.storage = storage;
    this.tab = tab;
    /** @type {string | null} */ this.user = user;
    /** @type {Map<string, string>} */ this.held = new Map(); // texts of a user who is not known yet
    this.save = save;
    this.load = load;
    this.setTimer = setTimer;
    this.clearTimer = clearTimer;
    /** @type {Map<string, number>} */ this.timers = new Map();
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

  /** Of this tab. @param {string} chat */
  #name(chat) {
    return `${this.#nameOfAll(chat)}:${this.tab.name}`;
  }

  /** @param {string} chat */
  #nameOfAll(chat) {
    return `${PREFIX}${encodeURIComponent(this.user ?? "")}:${encodeURIComponent(chat)}`;
  }

  /** The text of this tab. @param {string} chat */
  get(chat) {
    return (this.user === null ? this.held.get(chat) : parse(this.storage.getItem(this.#name(chat))).text) ?? "";
  }

  /** What other tabs have, the newest first. @param {string} chat @returns {Left[]} */
  #listOthers(chat) {
    const all = this.#nameOfAll(chat);
    const own = this.#name(chat);
    /** @type {Left[]} */
    const found = [];
    for (let at = 0; at < this.storage.length; at += 1) {
      const name = this.storage.key(at) ?? "";
      if (name === own || !(name === all || name.startsWith(`${all}:`))) continue;
      const stored = this.storage.getItem(name);
      found.push(name === all ? { name, tab: null, text: stored ?? "", at: 0 } : { name, tab: name.slice(all.length + 1), ...parse(stored) });
    }
    return found.filter(({ text }) => text).sort((a, b) => b.at - a.at);
  }

  /** The text for a chat that is opened: this tab's, else what a closed tab has left, else the server's. @param {string} chat */
  async fetch(chat) {
    const { user } = this;
    if (this.get(chat) || user === null) return this.get(chat);
    const others = this.#listOthers(chat);
    if (others.length) {
      const open = await this.tab.findOpen(others.flatMap((left) => left.tab ?? []));
      if (user !== this.user || this.get(chat)) return this.get(chat);
      const still = this.#listOthers(chat); // another tab may have taken it meanwhile
      const left = still.find(({ tab }) => tab === null || !open.has(tab));
      if (left) return this.#takeOver(chat, left);
      if (still.length) return ""; // an open tab shows it, and the server has the same
    }
    if (!this.load) return "";
    const found = await this.load(chat).catch(() => null);
    if (user !== this.user) return this.get(chat);
    if (found?.text) this.stored.add(chat);
    return this.get(chat) || (found?.text ?? "");
  }

  /** @param {string} chat @param {Left} left */
  #takeOver(chat, { name, text, at }) {
    this.storage.removeItem(name); // first: there may be no room for both
    this.#store(chat, text, at);
    this.stored.add(chat);
    return text;
  }

  /** @param {string} chat @param {string} text @param {number} at */
  #store(chat, text, at) {
    try {
      if (text) this.storage.setItem(this.#name(chat), JSON.stringify({ at, text }));
      else this.storage.removeItem(this.#name(chat));
    } catch {
      // No room: the text is still in the composer, and soon on the server.
    }
  }

  /** @param {string} chat @param {string} text */
  set(chat, text) {
    if (this.user === null) return void this.held.set(chat, text);
    this.#store(chat, text, Date.now());
    if (!this.save) return;
    this.clearTimer(this.timers.get(chat));
    this.timers.set(chat, this.setTimer(() => this.flush(chat, text || this.#findNewest(chat), !text), DELAY_MS));
  }

  /** @param {string} chat @param {string} text @param {boolean} replaces  this tab's words, which were sent or deleted: they must not come back */
  flush(chat, text, replaces) {
    this.clearTimer(this.timers.get(chat));
    this.timers.delete(chat);
    if (text) this.stored.add(chat);
    const { user } = this;
    const isStillSo = () => replaces && user === this.user && !this.timers.has(chat);
    void this.save?.(chat, text).then(
      () => { if (!text && isStillSo()) this.stored.delete(chat); },
      (error) => {
        if (!isStillSo() || !(isLost(error) || statusOf(error) === 401)) return;
        this.timers.set(chat, this.setTimer(() => this.flush(chat, this.#findNewest(chat), true), RETRY_MS));
      },
    );
  }

  /** This tab's text, else the newest that another one shows. @param {string} chat */
  #findNewest(chat) {
    return this.get(chat) || (this.#listOthers(chat)[0]?.text ?? "");
  }

  /** The tab is being hidden or closed: save what waits. */
  flushAll() {
    for (const chat of [...this.timers.keys()]) this.flush(chat, this.#findNewest(chat), !this.get(chat));
  }

  /** It was sent: nothing is left of it here, and the server has what another tab shows. @param {string} chat */
  clear(chat) {
    const hadTimer = this.timers.has(chat);
    const had = this.get(chat);
    this.held.delete(chat);
    this.storage.removeItem(this.#name(chat));
    if (this.save && (had || hadTimer || this.stored.has(chat))) this.flush(chat, this.#findNewest(chat), true);
  }
}

/** @param {string | null} stored @returns {{text: string, at: number}} */
function parse(stored) {
  const nothing = { text: "", at: 0 };
  try {
    return { ...nothing, ...JSON.parse(stored ?? "null") };
  } catch {
    return nothing; // not ours
  }
}
