// The state of one chat in the page: the events of the feed, applied in order.
//
// `apply` handles one event; thread.js turns the state into what is shown. A reply that is running lives in `live` until
// the `message` that ends its attempt takes its place: `keys` remembers the attempt, so that the item on the screen
// keeps its key (and its selection, open details and scroll position). `children` collects the alternatives at every
// place of the tree, since a `message` event names none.
//
// A `head` event that names a loaded message shortens the conversation. One that names another asks for a snapshot.
//
// `revision` grows with every change but the growth of the running reply, so that a token costs the same however long the
// conversation is (thread.js).
//
// Must stay true (tests/web/thread.test.mjs): events from any snapshot on lead to the state of a later snapshot.

import { applyPart } from "./blocks.js";

/** @import { Action, Block, Details, Failure, FeedData, Kind, Live, Message, Queued, Retry, Snapshot, Status } from "./shapes.js" */

/** The kinds of event in a chat's feed, in the order of docs/feed.md (tests/feed/test_feed_page.py). @type {Kind[]} */
export const KINDS = [
  "snapshot", "message", "head", "attempt", "part", "reset", "status", "queue", "retry", "action", "error", "chat", "resync", "end",
];

/** @type {Status[]} */
export const BUSY = ["running", "pending", "interrupting"];
/** @type {(keyof Details)[]} */
const DETAILS = ["title", "model", "debug", "archived", "pinned", "labels", "system", "usage", "unread"];

export class ChatState {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    this.loaded = false;
    /** @type {Status} */ this.status = "idle";
    /** @type {string | null} */ this.turn = null;
    /** @type {Failure | null} */ this.error = null;
    /** @type {Retry | null} */ this.retry = null;
    /** @type {Action | null} */ this.action = null;
    /** @type {Message[]} */ this.messages = [];
    /** @type {Queued[]} */ this.queue = [];
    /** @type {(Live & {startedAt: number}) | null} */ this.live = null;
    /** @type {Details} */ this.details = {};
    this.hasMore = false;
    this.needsSnapshot = false;
    this.revision = 0; // grows with every change but the growth of `live`
    this.branch = 0; // grows when the conversation shows another branch
    /** @type {Map<string, string[]>} */ this.children = new Map();
    /** @type {Map<string, string>} */ this.keys = new Map();
    /** @type {{ended: number, outcome: string} | null} */ this.lastEnd = null;
  }

  get busy() {
    return BUSY.includes(this.status);
  }

  /** @returns {string | null} */
  get title() {
    return this.details.title ?? null;
  }

  /** @template {Kind} K @param {K} kind @param {FeedData[K]} data */
  apply(kind, data) {
    const { live } = this;
    HANDLERS[kind]?.(this, data);
    if (kind !== "part" || this.live !== live) this.revision += 1;
  }

  /** The item of this message has this key, from its first moment on. @param {string} messageId @param {string} key */
  setKey(messageId, key) {
    this.keys.set(messageId, key);
    this.revision += 1;
  }

  /** What another tab needs to show the same (feedhub.js). @returns {Snapshot} */
  toSnapshot() {
    const { id, status, turn, error, retry, action, messages, queue, live, hasMore } = this;
    return { ...this.details, id, status, turn, error, retry, action, messages, queue, live, has_more: hasMore };
  }

  /** Put earlier messages above those that are loaded. @param {Message[]} earlier @param {boolean} hasMore */
  prepend(earlier, hasMore) {
    const known = new Set(this.messages.map(({ id }) => id));
    const added = earlier.filter(({ id }) => !known.has(id));
    for (const message of added) this.#noteSiblings(message);
    if (added.length) this.messages = [...added, ...this.messages];
    this.hasMore = hasMore;
    this.revision += 1;
  }

  /** The alternatives at the place of this message, itself included, oldest first. @param {Message} message */
  siblingsOf(message) {
    return this.children.get(message.parent_id ?? "") ?? [message.id];
  }

  /** @param {Message} message */
  #noteSiblings(message) {
    const place = message.parent_id ?? "";
    const known = this.children.get(place) ?? [];
    const added = [...(message.siblings ?? []), message.id].filter((id) => !known.includes(id));
    if (added.length) this.children.set(place, [...known, ...new Set(added)]);
  }

  /** @param {Message[]} messages @param {boolean} hasMore */
  replaceMessages(messages, hasMore) {
    // Earlier messages that the user has scrolled to stay, if the new ones follow them.
    const at = this.messages.findIndex(({ id }) => id === messages[0]?.id);
    const above = hasMore && at > 0 ? this.messages.slice(0, at) : [];
    const kept = new Map(this.messages.map((message) => [message.id, message]));
    this.messages = [...above, ...messages.map((message) => kept.get(message.id) ?? message)];
    if (!above.length) this.hasMore = hasMore;
    for (const message of messages) this.#noteSiblings(message);
  }

  /** @param {Message} message */
  addMessage(message) {
    if (this.messages.some(({ id }) => id === message.id)) return;
    this.#noteSiblings(message);
    this.messages = [...this.messages, message];
  }
}

/** @type {{[K in Kind]?: (chat: ChatState, data: FeedData[K]) => void}} */
const HANDLERS = {
  snapshot(chat, data) {
    for (const name of DETAILS) if (name in data) chat.details = { ...chat.details, [name]: data[name] };
    const { live } = data;
    const before = chat.live;
    Object.assign(chat, { status: data.status, turn: data.turn, error: data.error, retry: data.retry, queue: data.queue });
    chat.action = data.action ?? null;
    chat.replaceMessages(data.messages, data.has_more);
    chat.live = live && {
      attempt: live.attempt,
      blocks: live.blocks.map((/** @type {Block} */ block) => ({ ...block })),
      startedAt: before && before.attempt === live.attempt ? before.startedAt : (live.startedAt ?? Date.now()),
      model: live.model ?? before?.model,
    };
    chat.needsSnapshot = false;
    chat.loaded = true;
  },
  message(chat, { message, attempt }) {
    if (attempt && chat.live?.attempt === attempt) chat.live = null;
    if (attempt) chat.keys.set(message.id, attempt);
    chat.addMessage(message);
  },
  head(chat, { head }) {
    const at = chat.messages.findIndex(({ id }) => id === head);
    chat.branch += 1;
    if (head === null && !chat.hasMore) chat.messages = [];
    else if (at >= 0) chat.messages = chat.messages.slice(0, at + 1);
    else chat.needsSnapshot = true;
  },
  attempt(chat, { attempt, model }) {
    chat.retry = null;
    chat.live = { attempt, blocks: [], startedAt: Date.now(), model };
    if (chat.status === "pending") chat.status = "running"; // a worker claimed the chat; no event reports this
  },
  part(chat, { attempt, parts }) {
    if (chat.live?.attempt !== attempt) chat.live = { attempt, blocks: [], startedAt: Date.now() };
    const { blocks } = /** @type {{blocks: Block[]}} */ (chat.live);
    for (const part of parts) applyPart(blocks, part);
  },
  reset(chat, { attempt }) {
    if (chat.live?.attempt === attempt) chat.live = null;
  },
  status(chat, { status, turn, ended }) {
    chat.status = status;
    chat.turn = turn;
    if (status !== "error") chat.error = null;
    if (status !== "requires_action") chat.action = null;
    if (!chat.busy) chat.retry = null;
    if (ended) chat.lastEnd = { ended: Date.now(), outcome: ended.outcome };
  },
  queue(chat, { queue }) {
    chat.queue = queue;
  },
  retry(chat, data) {
    if (data.attempt && chat.live?.attempt === data.attempt) chat.live = null;
    chat.retry = { ...data, receivedAt: Date.now() };
  },
  action(chat, { calls, deadline_at }) {
    chat.action = { calls, deadline_at };
  },
  error(chat, data) {
    chat.error = data;
  },
  chat(chat, data) {
    chat.details = { ...chat.details, ...data };
  },
};
