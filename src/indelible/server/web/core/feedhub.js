// One connection per chat and browser, shared by all tabs, and a few in all.
//
// A browser opens six connections to a server (HTTP/1.1), and a feed holds one for ever: with a feed per tab, the
// seventh tab would never load and no message could be sent. So tabs that show the same chat share one feed: the tab
// that holds the chat's Web Lock reads it and tells the others over a BroadcastChannel. And of all feeds of a browser at
// most SLOTS are connected at a time: a tab waits for a slot, a hidden tab gives its slot away at once, and visible ones
// take turns of a second. A tab that has no slot misses nothing: it reads on from its cursor.
//
// A shared event names the cursor before it, so a tab that takes over, or that comes late, applies every event once. A
// tab whose position does not fit asks the leader for its state.
//
// Must stay true (tests/web/feedhub.test.mjs, tests/e2e/test_page_tabs.py): every tab sees every event once, whichever tab closes.

import { newKey } from "./api.js";
import { KINDS } from "./chat.js";
import { Stream } from "./stream.js";

export const SLOTS = 3;
export const TURN_MS = 1000;
const MISMATCH_MS = 300;

/** @import { FeedEvent, Kind, Snapshot } from "./shapes.js" */
/** @import { Source } from "./stream.js" */
/** @typedef {{connection: "live" | "reconnecting", retryAt?: number}} Reported */
/**
 * What tabs tell each other: a wish (`join`, `resync`), an answer to one tab (`to`), the leader's connection, or an event.
 * @typedef {{join?: string, resync?: boolean, to?: string, state?: Snapshot | null, kind?: Kind, data?: unknown, before?: string | null,
 *   cursor?: string | null} & Partial<Reported>} Told
 */
/**
 * @typedef {object} HubOptions
 * @property {string} chatId
 * @property {(cursor: string | null) => Source} open
 * @property {() => Promise<boolean>} check
 * @property {(...event: FeedEvent) => void} onEvent
 * @property {(state: "live" | "reconnecting" | "shared", retryAt?: number) => void} onState
 * @property {() => Snapshot | null} readState  a snapshot of what this tab shows, or null
 * @property {LockManager | undefined} [locks]
 * @property {(name: string) => BroadcastChannel} [openChannel]
 * @property {() => boolean} [isHidden]
 * @property {string} [tab]
 */

export class FeedHub {
  /** @param {HubOptions} options */
  constructor(options) {
    this.options = options;
    this.tab = options.tab ?? newKey();
    this.closing = new AbortController();
    this.leads = false;
    this.isReady = false; // has a state that events apply to
    /** @type {string | null} */ this.cursor = null;
    /** @type {Stream | null} */ this.stream = null;
    /** @type {(() => void) | null} */ this.giveSlot = null;
    /** @type {number | undefined} */ this.mismatch = undefined;
    /** @type {Reported} */ this.reported = { connection: "live" }; // by this tab's stream
    this.isShared = false; // a follower: the leader's connection is live, and this tab has said so
    this.since = 0;
    const openChannel = options.openChannel ?? ((name) => new BroadcastChannel(name));
    this.channel = openChannel(`indelible:feed:${options.chatId}`);
    this.channel.onmessage = ({ data }) => this.#receive(data);
    this.slots = openChannel("indelible:slots");
    this.slots.onmessage = ({ data }) => this.#receiveRequest(data.want);
    this.slot = "";
    void this.#run();
  }

  close() {
    this.closing.abort();
    clearTimeout(this.mismatch);
    this.stream?.close();
    this.giveSlot?.();
    this.channel.close();
    this.slots.close();
  }

  hurry() {
    this.stream?.hurry();
  }

  /** Get a snapshot: what is shown cannot be continued with events (another branch). */
  resync() {
    if (this.leads && this.stream) this.stream.resync();
    else if (this.leads) this.cursor = null;
    else this.channel.postMessage({ resync: true });
  }

  /** A hidden tab gives its connection to a tab that waits for one. */
  noteVisibility() {
    void this.#giveIfWanted();
  }

  async #run() {
    const { locks } = this.options;
    if (!locks) {
      this.leads = true;
      return this.#connect();
    }
    this.channel.postMessage({ join: this.tab });
    const { signal } = this.closing;
    try {
      await locks.request(`indelible:feed:${this.options.chatId}`, { signal }, async () => {
        this.leads = true;
        while (!signal.aborted) await this.#runTurn(locks);
      });
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  /** Hold a slot, and be connected, until it is given away. @param {LockManager} locks */
  async #runTurn(locks) {
    const hold = (/** @type {Lock | null} */ lock) => {
      if (!lock || this.closing.signal.aborted) return false;
      this.slot = lock.name;
      this.since = Date.now();
      /** @type {Promise<boolean>} */
      const held = new Promise((give) => (this.giveSlot = () => give(true)));
      this.#connect();
      void this.#giveIfWanted();
      return held;
    };
    for (let at = 0; at < SLOTS; at += 1) {
      if (await locks.request(`indelible:slot:${at}`, { ifAvailable: true }, hold)) return;
    }
    const wanted = `indelible:slot:${Math.floor(Math.random() * SLOTS)}`;
    this.slots.postMessage({ want: wanted });
    await locks.request(wanted, { signal: this.closing.signal }, hold);
  }

  #connect() {
    const { options } = this;
    this.stream?.close();
    this.stream = new Stream({
      open: options.open, check: options.check, kinds: KINDS, cursor: this.cursor,
      onState: (state, retryAt) => {
        this.reported = { connection: state, retryAt };
        this.channel.postMessage(this.reported);
        options.onState(state, retryAt);
      },
      onEvent: (kind, data, cursor) => {
        const before = this.cursor;
        this.cursor = cursor;
        this.isReady = true;
        this.channel.postMessage({ kind, data, before, cursor }); // first: the event may close this hub (a deleted chat)
        options.onEvent(.../** @type {FeedEvent} */ ([kind, data]));
        if (kind === "end") this.stream?.reopen();
      },
    });
  }

  /** @param {string} slot */
  #receiveRequest(slot) {
    if (this.giveSlot && slot === this.slot) void this.#giveIfWanted(true);
  }

  async #giveIfWanted(isWanted = false) {
    const { locks, isHidden = () => document.hidden } = this.options;
    if (!locks || !this.giveSlot) return;
    const { pending = [] } = await locks.query();
    if (!isWanted && !pending.some(({ name }) => name === this.slot)) return;
    const left = isHidden() ? 0 : this.since + TURN_MS - Date.now();
    if (left > 0) return void setTimeout(() => void this.#giveIfWanted(true), left);
    const give = this.giveSlot;
    if (!give) return;
    this.giveSlot = null;
    this.stream?.close();
    this.stream = null;
    give();
  }

  /** @param {Told} message */
  #receive(message) {
    if (message.join) {
      if (!this.leads) return;
      this.channel.postMessage({ to: message.join, state: this.isReady ? this.options.readState() : null, cursor: this.cursor, ...this.reported });
    } else if (message.resync) {
      if (this.leads) this.resync();
    } else if (this.leads) {
      return; // the last words of the leader before this one: the server has them, too
    } else if (message.to) {
      if (message.to !== this.tab) return;
      if (message.state) this.#follow("snapshot", message.state, message.cursor, message);
      else this.#noteConnection(message);
    } else if (message.connection) {
      this.#noteConnection(message);
    } else if (message.kind && (message.kind === "snapshot" || (this.isReady && message.before === this.cursor))) {
      this.#follow(message.kind, message.data, message.cursor, { connection: "live" });
    } else {
      this.mismatch ??= setTimeout(() => {
        this.mismatch = undefined;
        this.channel.postMessage({ join: this.tab });
      }, MISMATCH_MS);
    }
  }

  /** What the leader's connection is. @param {Partial<Reported>} reported */
  #noteConnection({ connection = "live", retryAt }) {
    const isLive = connection === "live";
    if (isLive && (!this.isReady || this.isShared)) return; // until there is something to show, this tab is connecting
    this.isShared = isLive;
    this.options.onState(isLive ? "shared" : connection, retryAt);
  }

  /** @param {Kind} kind @param {unknown} data @param {string | null | undefined} cursor @param {Partial<Reported>} reported */
  #follow(kind, data, cursor = null, reported) {
    clearTimeout(this.mismatch);
    this.mismatch = undefined;
    this.cursor = cursor;
    this.isReady = true;
    this.#noteConnection(reported);
    this.options.onEvent(.../** @type {FeedEvent} */ ([kind, data]));
  }
}
