// What the user has typed and not sent: in the browser with every key, on the server a moment later.
//
// The browser's copy wins while it exists, since it is never older than the server's. Sending clears both.
// A server without drafts (or one that is away) changes nothing for the user.
//
// Every text belongs to a user. Another user of the same browser neither sees nor sends it, and who logs out finds it
// again after the next login. Until it is known who is logged in (`setUser`), texts are held in memory.

const PREFIX = "indelible:draft:";
export const DELAY_MS = 800;

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
  }

  /** @param {string} user */
  setUser(user) {
    this.user = user;
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
    const found = await this.load(chat).catch(() => null);
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
    void this.save?.(chat, text).catch(() => {});
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
    if (this.save && (had || hadTimer)) this.flush(chat, "");
  }
}
