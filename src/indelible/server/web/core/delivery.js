// Messages on their way: from the outbox to the place where they can be seen, in the conversation or in the queue.
//
// The feed and the response of a request come in any order, so an entry of the outbox is paired with its message by
// whichever is first: by the id of the response, or by its text. From then on the item of the message has the key of the
// entry (core/thread.js), and nothing on the screen is replaced.

import { plainText } from "./thread.js";

/** @import { ChatState } from "./chat.js" */
/** @import { Entry, Outbox } from "./outbox.js" */
/** @import { Delivered, FeedEvent } from "./shapes.js" */

export class Delivery {
  /** @param {Pick<Outbox, "list" | "resolve">} outbox */
  constructor(outbox) {
    this.outbox = outbox;
    /** @type {Map<string, {entry: Entry, id: string | undefined}>} */ this.sent = new Map(); // delivered, not yet seen in the feed
    /** @type {Map<string, string>} */ this.pairs = new Map(); // outbox entry -> message or queued message
  }

  /** What is on its way to this chat: an id, or `new:…`. @param {string} chat @returns {Entry[]} */
  list(chat) {
    const isHere = (/** @type {Entry} */ entry) => (this.outbox.resolve(entry.chat) === chat || entry.chat === chat) && !this.pairs.has(entry.key);
    const delivered = [...this.sent.values()].map(({ entry }) => ({ ...entry, state: /** @type {const} */ ("sent") }));
    return [...delivered, ...this.outbox.list(chat)].filter(isHere);
  }

  /** The server has it. @param {Entry} entry @param {Delivered} response @param {ChatState | null} chat  the one that is shown */
  noteResponse(entry, response, chat) {
    const id = response.message ?? response.queued ?? this.pairs.get(entry.key);
    this.sent.set(entry.key, { entry, id });
    if (id) chat?.setKey(id, entry.key);
  }

  /** A chat is opened: what was delivered to it has its key. @param {ChatState} chat */
  nameMessages(chat) {
    for (const { entry, id } of this.sent.values()) if (id && this.outbox.resolve(entry.chat) === chat.id) chat.setKey(id, entry.key);
  }

  /** An event was applied to this chat. @param {ChatState} chat @param {FeedEvent} event @param {{isFirst: boolean, queuedBefore: Set<string>}} before */
  noteEvent(chat, [kind, data], { isFirst, queuedBefore }) {
    if (kind === "message" && data.message.role === "user") this.#pair(chat, data.message.id, plainText(data.message.blocks), data.queued);
    if (kind === "queue") {
      for (const queued of data.queue) if (!queuedBefore.has(queued.id)) this.#pair(chat, queued.id, plainText(queued.blocks));
    }
    if (kind === "snapshot") for (const [key, { id }] of this.sent) if (id) chat.setKey(id, key);
    if (kind === "snapshot" || kind === "message" || kind === "queue") this.noteSeen(chat);
    // Delivered before, and not here: it has another name by now (it was queued), or is on another branch.
    if (kind === "snapshot" && isFirst) for (const [key, { entry }] of this.sent) if (this.outbox.resolve(entry.chat) === chat.id) this.sent.delete(key);
  }

  /** What was delivered and can be seen is no longer on its way, whatever becomes of it. @param {ChatState | null} chat */
  noteSeen(chat) {
    for (const [key, { id }] of this.sent) {
      if (!id || !(chat?.messages.some((one) => one.id === id) || chat?.queue.some((one) => one.id === id))) continue;
      this.pairs.set(key, id);
      this.sent.delete(key);
    }
  }

  /** The feed may be faster than the response: the message is the one that we are sending. @param {ChatState} chat @param {string} id @param {string} text @param {string | null} [queued] */
  #pair(chat, id, text, queued) {
    const before = [...this.pairs].find(([, known]) => known === queued)?.[0] ?? [...this.sent].find(([, known]) => known.id === queued)?.[0];
    const entry = before ?? this.outbox.list(chat.id).find((one) => one.text === text && !this.pairs.has(one.key))?.key
      ?? [...this.sent].find(([, known]) => known.id === id)?.[0];
    if (!entry) return;
    this.pairs.set(entry, id);
    chat.setKey(id, entry);
  }
}
