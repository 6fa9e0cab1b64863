// What the user has typed and not sent: in the browser with every key, on the server a moment later.
//
// The browser's copy wins while it exists, since it is never older than the server's. Sending clears both.
// A server without drafts (or one that is away) changes nothing for the user.

const PREFIX = "indelible:draft:";
export const DELAY_MS = 800;

export class Drafts {
  /**
   * @param {{storage: Storage, save?: (chat: string, text: string) => Promise<any>, load?: (chat: string) => Promise<{text: string}>,
   *   setTimer?: (wake: () => void, ms: number) => any, clearTimer?: (timer: any) => void}} options
   */
  constructor({ storage, save, load, setTimer = (wake, ms) => setTimeout(wake, ms), clearTimer = (timer) => clearTimeout(timer) }) {
    this.storage = storage;
    this.save = save;
    this.load = load;
    this.setTimer = setTimer;
    this.clearTimer = clearTimer;
    /** @type {Map<string, any>} */ this.timers = new Map();
  }

  /** The text in this browser. @param {string} chat */
  get(chat) {
    return this.storage.getItem(PREFIX + chat) ?? "";
  }

  /** The server's text, if this browser has none. @param {string} chat */
  async fetch(chat) {
    if (!this.load || this.get(chat)) return this.get(chat);
    const found = await this.load(chat).catch(() => null);
    return this.get(chat) || (found?.text ?? "");
  }

  /** @param {string} chat @param {string} text */
  set(chat, text) {
    try {
      if (text) this.storage.setItem(PREFIX + chat, text);
      else this.storage.removeItem(PREFIX + chat);
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
    this.storage.removeItem(PREFIX + chat);
    if (this.save && (had || hadTimer)) this.flush(chat, "");
  }
}
