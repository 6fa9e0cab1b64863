// The chat that is shown: opening it, its feed, and what the events of the feed mean for the rest of the page.

import { isMissing } from "../core/api.js";
import { ChatState } from "../core/chat.js";
import { FeedHub } from "../core/feedhub.js";
import { plainText, Thread } from "../core/thread.js";
import { has, isReadOnly, newPlace } from "./state.js";

/** @import { Api } from "../core/api.js" */
/** @import { Delivery } from "../core/delivery.js" */
/** @import { Entry, Outbox } from "../core/outbox.js" */
/** @import { Delivered, FeedEvent } from "../core/shapes.js" */
/** @import { ChatList } from "./chatlist.js" */
/** @import { Preferences } from "./preferences.js" */
/** @import { Connection, Slice } from "./state.js" */
/** @import { Toasts } from "./toasts.js" */
/** @import { Writing } from "./writing.js" */

/** @typedef {"place" | "chat" | "sharedKey" | "connection" | "problem" | "target" | "isEarlierBroken" | "nextModel" | "isLoggedOut" | "routes" | "announcement"} Shown */

const NOT_FOUND = "Chat not found. It may have been deleted.";

export class Conversation {
  /**
   * @param {{store: Slice<Shown>, api: Api, toasts: Toasts, outbox: Pick<Outbox, "resolve">, delivery: Delivery, list: Pick<ChatList, "note" | "refresh">,
   *   writing: Pick<Writing, "load" | "move" | "leave">, preferences: Pick<Preferences, "notify">, onReconnect: () => void}} parts
   */
  constructor({ store, api, toasts, outbox, delivery, list, writing, preferences, onReconnect }) {
    this.store = store;
    this.api = api;
    this.toasts = toasts;
    this.outbox = outbox;
    this.delivery = delivery;
    this.list = list;
    this.writing = writing;
    this.preferences = preferences;
    this.onReconnect = onReconnect;
    this.thread = new Thread();
    /** @type {FeedHub | null} */ this.hub = null;
  }

  get items() {
    const { chat } = this.store.state;
    return chat ? this.thread.build(chat) : [];
  }

  /** Messages on their way: not yet in the conversation or the queue. */
  get pending() {
    const { chat, place } = this.store.state;
    return this.delivery.list(chat?.id ?? place);
  }

  get title() {
    const { chat, place } = this.store.state;
    if (!chat) return place === "gone" ? "Chat not found" : "New chat";
    const first = chat.messages.find(({ role }) => role === "user");
    return chat.title ?? ((first && plainText(first.blocks).slice(0, 60)) || "New chat");
  }

  #writeTitle() {
    const { chat } = this.store.state;
    document.title = chat && this.title ? `${chat.busy ? "● " : ""}${this.title} · Indelible` : "Indelible";
  }

  // --- which chat ---

  /** @param {string | null} id  null: one that does not exist yet @param {string | null} [target]  the message to scroll to */
  open(id, target = null) {
    const { state } = this.store;
    const isKnown = id !== null && this.outbox.resolve(state.place) === id; // the one that was begun here, or the same one again
    if (isKnown && state.place.startsWith("new:")) this.writing.move(id);
    this.hub?.close();
    this.hub = null;
    this.thread = new Thread();
    const chat = id || state.sharedKey ? new ChatState(id ?? "shared") : null;
    if (!isKnown) state.nextModel = undefined;
    this.store.set({ chat, place: id ?? newPlace(), problem: null, isEarlierBroken: false, target, connection: { state: chat ? "connecting" : "live" } });
    if (chat) this.#connect(chat);
    void this.writing.load();
    this.#writeTitle();
  }

  /** @param {ChatState} chat */
  #connect(chat) {
    const { api, path, store: { state } } = this;
    this.delivery.nameMessages(chat);
    this.hub = new FeedHub({
      chatId: state.sharedKey ?? chat.id, locks: navigator.locks,
      open: (cursor) => new EventSource(api.url(`${path}/events${cursor ? `?after=${encodeURIComponent(cursor)}` : ""}`)),
      check: async () => {
        if (state.isLoggedOut) throw new Error("logged out"); // waits for the login
        return api.get(path).then(() => true, (error) => {
          if (!isMissing(error)) throw error;
          if (state.chat === chat) this.#leave(state.sharedKey ? error.message : NOT_FOUND);
          return false;
        });
      },
      onEvent: (...event) => { if (state.chat === chat) this.#receive(chat, event); },
      onState: (connection, retryAt) => this.#noteConnection({ state: connection, retryAt }),
      readState: () => (chat.loaded ? chat.toSnapshot() : null),
    });
  }

  /** Where the API has the chat that is shown. */
  get path() {
    const { sharedKey, chat } = this.store.state;
    return sharedKey ? `shared/${sharedKey}` : `chats/${chat?.id}`;
  }

  #leave(problem = NOT_FOUND) {
    this.hub?.close();
    this.hub = null;
    this.writing.leave();
    this.store.set({ chat: null, place: "gone", problem, connection: { state: "live" } });
    if (!this.store.state.sharedKey) this.list.refresh();
  }

  /** @param {Connection} connection */
  #noteConnection(connection) {
    if (this.store.state.connection.state === "reconnecting" && connection.state !== "reconnecting") this.onReconnect();
    this.store.set({ connection });
  }

  /** The page is hidden, or shown again. */
  noteVisibility() {
    if (!document.hidden) this.noteRead();
    this.hub?.noteVisibility();
  }

  /** The network may be back. */
  hurry() {
    this.hub?.hurry();
  }

  // --- its events ---

  /** @param {ChatState} chat @param {FeedEvent} event */
  #receive(chat, event) {
    const [kind, data] = event;
    const { store } = this;
    if (kind === "end") {
      if (data.reason === "deleted") this.#leave();
      return;
    }
    const wasBusy = chat.busy;
    const before = { isFirst: !chat.loaded, queuedBefore: new Set(chat.queue.map(({ id }) => id)) };
    const { revision } = chat;
    chat.apply(kind, data);
    if (chat.revision === revision) return store.grown();
    this.delivery.noteEvent(chat, event, before);
    if (kind === "snapshot" && before.isFirst) this.noteRead();
    if (chat.needsSnapshot) this.hub?.resync();
    if (kind === "chat" || kind === "status" || kind === "snapshot") {
      if (!store.state.sharedKey) this.list.note(chat, { isRead: !document.hidden });
      this.#writeTitle();
    }
    if (chat.busy && !wasBusy) store.state.announcement = ""; // or the end of the next reply, in the same words, would not be read out
    if (kind === "status" && wasBusy && !chat.busy) this.#noteEnd(chat, data.ended?.outcome);
    store.changed();
  }

  /** @param {ChatState} chat @param {string} [outcome] */
  #noteEnd(chat, outcome) {
    const announcement = outcome === "failed" ? "The reply failed." : outcome === "interrupted" ? "Stopped. What was written is saved." : "The reply is complete.";
    this.store.set({ announcement });
    if (document.hidden && this.preferences.notify && "Notification" in globalThis && Notification.permission === "granted") {
      new Notification(chat.title ?? "Indelible", { body: announcement, tag: chat.id });
    }
    this.noteRead();
  }

  noteRead() {
    const { state } = this.store;
    if (!state.chat?.loaded || document.hidden || state.sharedKey || !has(state, "POST /chats/{chat_id}/read")) return;
    void this.api.markRead(state.chat.id).catch(() => {});
  }

  /** The server has a message that was sent from here. @param {Entry} entry @param {Delivered} response */
  noteDelivery(entry, response) {
    const { state } = this.store;
    this.delivery.noteResponse(entry, response, state.chat);
    if (entry.chat === state.place && entry.chat.startsWith("new:") && response.id) this.adopt(response.id);
    this.delivery.noteSeen(state.chat);
    this.list.refresh();
    this.store.changed();
  }

  /** The chat that was begun here has this id now. @param {string} id */
  adopt(id) {
    history.replaceState(null, "", `#${id}`);
    this.open(id);
  }

  stop() {
    const { chat } = this.store.state;
    if (!chat || isReadOnly(this.store.state) || chat.status === "interrupting" || (!chat.busy && chat.status !== "requires_action")) return;
    chat.status = "interrupting";
    this.store.changed();
    void this.toasts.attempt(() => this.api.interrupt(chat.id, chat.turn)).then((done) => {
      if (!done) this.hub?.resync(); // it was not stopped: show what is true
    });
  }
}
