// Which tab this is, and which others of this browser are open.
//
// A tab has a name for as long as it is open, and keeps it over a reload: the name waits in the tab's own storage from
// the moment the page is left until it is loaded again, and at no other time, because a duplicated tab gets a copy of that
// storage. An open tab holds a Web Lock with its name, which the browser releases however the tab ends. Without locks (over
// plain http) tabs ask each other, and one that does not answer for a while counts as closed.

import { newKey } from "./api.js";

const NAME = "indelible:tab";
const LOCK = "indelible:tab:";
export const ANSWER_MS = 1500;

export class Tab {
  /**
   * @param {{storage: Storage, locks?: LockManager, channel?: BroadcastChannel, setTimer?: (wake: () => void, ms: number) => number, clearTimer?: (timer: number) => void}} options
   *   `storage`: of this tab alone; `channel`: to all tabs, used without locks
   */
  constructor({ storage, locks, channel, setTimer = (wake, ms) => setTimeout(wake, ms), clearTimer = (timer) => clearTimeout(timer) }) {
    this.storage = storage;
    this.locks = locks;
    this.channel = channel;
    this.setTimer = setTimer;
    this.clearTimer = clearTimer;
    /** @type {Set<(name: string) => void>} */ this.asking = new Set();
    this.name = storage.getItem(NAME) ?? newKey();
    this.noteShown();
    void locks?.request(LOCK + this.name, () => new Promise(() => {}));
    if (channel) channel.onmessage = ({ data }) => (data.name ? this.asking.forEach((note) => note(data.name)) : channel.postMessage({ name: this.name }));
  }

  /** The page is shown, perhaps from the browser's cache. */
  noteShown() {
    this.storage.removeItem(NAME);
  }

  /** The page is being left; a reload comes back. */
  noteLeft() {
    this.storage.setItem(NAME, this.name);
  }

  /** Which of these tabs are open, and perhaps others. @param {Iterable<string>} names @returns {Promise<Set<string>>} */
  async findOpen(names) {
    if (!this.locks) return this.#ask(new Set(names));
    const { held = [], pending = [] } = await this.locks.query(); // pending: a tab that is being loaded again
    return new Set([...held, ...pending].map(({ name }) => name ?? "").filter((name) => name.startsWith(LOCK)).map((name) => name.slice(LOCK.length)));
  }

  /** @param {Set<string>} left @returns {Promise<Set<string>>} */
  #ask(left) {
    return new Promise((resolve) => {
      /** @type {Set<string>} */
      const found = new Set();
      const end = () => {
        this.clearTimer(timer);
        this.asking.delete(note);
        resolve(found);
      };
      const note = (/** @type {string} */ name) => {
        found.add(name);
        left.delete(name);
        if (!left.size) end();
      };
      const timer = this.setTimer(end, this.channel && left.size ? ANSWER_MS : 0);
      this.asking.add(note);
      this.channel?.postMessage({});
    });
  }
}
