// One connection to a feed: it reopens itself at the last cursor, without a limit on attempts.
//
// The caller gives the function that opens a connection (an EventSource in a browser), a check that tells a missing
// chat from a missing server, and the timer. Nothing is delivered after `close`.

export const SHORTEST_WAIT_MS = 200;
export const LONGEST_WAIT_MS = 5000;

/** @import { Kind } from "./shapes.js" */
/**
 * @typedef {object} Source  an EventSource or its like
 * @property {(kind: string, listener: (event: MessageEvent) => void) => void} addEventListener
 * @property {() => void} close
 * @property {((event: Event) => void) | null} onopen
 * @property {((event: Event) => void) | null} onerror
 */
/**
 * @typedef {object} StreamOptions
 * @property {(cursor: string | null) => Source} open
 * @property {Kind[]} kinds
 * @property {(kind: Kind, data: unknown, cursor: string | null) => void} onEvent
 * @property {(state: "live" | "reconnecting", retryAt?: number) => void} onState
 * @property {() => Promise<boolean>} check  resolves to false if reopening is pointless; rejects if the server is away
 * @property {string | null} [cursor]
 * @property {(wake: () => void, ms: number) => number} [setTimer]
 * @property {(timer?: number) => void} [clearTimer]
 */

export class Stream {
  /** @param {StreamOptions} options */
  constructor(options) {
    this.options = options;
    this.cursor = options.cursor ?? null;
    this.closed = false;
    this.waitMs = SHORTEST_WAIT_MS;
    this.setTimer = options.setTimer ?? ((wake, ms) => setTimeout(wake, ms));
    this.clearTimer = options.clearTimer ?? ((timer) => clearTimeout(timer));
    /** @type {Source | null} */ this.source = null;
    /** @type {number | undefined} */ this.timer = undefined;
    this.#open();
  }

  close() {
    this.closed = true;
    this.clearTimer(this.timer);
    this.source?.close();
  }

  /** Try again now: the network is back. */
  hurry() {
    if (this.closed || this.source) return;
    this.clearTimer(this.timer);
    this.waitMs = SHORTEST_WAIT_MS;
    void this.#check();
  }

  /** Drop the position: the next event is a snapshot. */
  resync() {
    this.cursor = null;
    this.source?.close();
    this.#open();
  }

  #open() {
    const source = this.options.open(this.cursor);
    this.source = source;
    for (const kind of this.options.kinds) {
      source.addEventListener(kind, (event) => {
        // A lost connection is also an event named error, but without data.
        if (event.data === undefined || this.source !== source || this.closed) return;
        this.cursor = event.lastEventId || this.cursor;
        this.options.onEvent(kind, JSON.parse(event.data), this.cursor);
      });
    }
    source.onopen = () => {
      this.waitMs = SHORTEST_WAIT_MS;
      if (!this.closed) this.options.onState("live");
    };
    source.onerror = (event) => {
      if (!("data" in event) && this.source === source) this.reopen();
    };
  }

  reopen() {
    if (this.closed) return;
    this.source?.close();
    this.source = null;
    this.clearTimer(this.timer);
    const wait = this.waitMs;
    this.waitMs = Math.min(2 * wait, LONGEST_WAIT_MS);
    this.options.onState("reconnecting", Date.now() + wait);
    this.timer = this.setTimer(() => void this.#check(), wait);
  }

  async #check() {
    const isThere = await this.options.check().catch(() => null);
    if (this.closed || this.source || isThere === false) return;
    if (isThere === null) this.reopen();
    else this.#open();
  }
}
