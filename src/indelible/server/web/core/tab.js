// Which tab this is, and which others of this browser are open.
//
// A tab has a name for as long as it is open, and keeps it over a reload: the name waits in the tab's own storage from
// the moment the page is left until it is loaded again, and at no other time, because a duplicated tab gets a copy of that
// storage. An open tab holds a Web Lock with its name, which the browser releases however the tab ends. Without locks (over
// plain http) no tab knows of any other.

import { newKey } from "./api.js";

const NAME = "indelible:tab";
const LOCK = "indelible:tab:";

export class Tab {
  /** @param {{storage: Storage, locks?: LockManager}} options  `storage`: of this tab alone */
  constructor({ storage, locks }) {
    this.storage = storage;
    this.locks = locks;
    this.name = storage.getItem(NAME) ?? newKey();
    this.noteShown();
    void locks?.request(LOCK + this.name, () => new Promise(() => {}));
  }

  /** The page is shown, perhaps from the browser's cache. */
  noteShown() {
    this.storage.removeItem(NAME);
  }

  /** The page is being left; a reload comes back. */
  noteLeft() {
    this.storage.setItem(NAME, this.name);
  }

  /** @returns {Promise<Set<string>>} */
  async findOpen() {
    if (!this.locks) return new Set();
    const { held = [], pending = [] } = await this.locks.query(); // pending: a tab that is being loaded again
    return new Set([...held, ...pending].map(({ name }) => name ?? "").filter((name) => name.startsWith(LOCK)).map((name) => name.slice(LOCK.length)));
  }
}
