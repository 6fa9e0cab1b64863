// The page's state and everything that a user can do with it; the components only draw it.
//
// `changed` asks for one drawing per frame, of the conversation alone if only its running reply has grown. Actions are optimistic where they can be undone, and an action that fails
// says so in a toast; a message that fails to arrive stays in the outbox.

import { Api, isLost, isMissing, newKey } from "../core/api.js";
import { ChatState } from "../core/chat.js";
import { Drafts } from "../core/drafts.js";
import { FeedHub } from "../core/feedhub.js";
import { Outbox } from "../core/outbox.js";
import { Tab } from "../core/tab.js";
import { plainText, Thread } from "../core/thread.js";
import { Attachments } from "./attachments.js";
import { ChatActions, UNDO_MS } from "./chatactions.js";
import { ChatList } from "./chatlist.js";
import { EarlierMessages } from "./earlier.js";
import { MessageActions } from "./messageactions.js";
import { NewChat } from "./newchat.js";
import { isPhone, Preferences } from "./preferences.js";
import { Session, USER } from "./session.js";

const ROOT = new URL("../../", import.meta.url);
const NOT_FOUND = "Chat not found. It may have been deleted.";

export class Controller {
  constructor() {
    this.api = new Api(new URL("api/v1/", ROOT));
    this.api.onUnauthorized = () => this.session.noteEnd();
    this.api.onReach = (isThere) => (isThere && !this.hub ? this.comeBack() : this.changed()); // no feed of a chat notices it
    this.preferences = new Preferences(() => this.changed());
    this.list = new ChatList(this);
    /** @type {Set<string>} */ this.routes = new Set();
    /** @type {any[]} */ this.models = [];
    this.session = new Session(this);
    /** @type {ChatState | null} */ this.chat = null;
    this.place = "new:0"; // the chat that is shown: an id, or one that does not exist yet
    this.sharedKey = /\/shared\/([\w-]+)$/.exec(location.pathname)?.[1] ?? null; // of a link: read only
    this.thread = new Thread();
    /** @type {FeedHub | null} */ this.hub = null;
    /** @type {{state: string, retryAt?: number}} */ this.connection = { state: "connecting" };
    /** @type {string | null} */ this.problem = null;
    /** @type {any} */ this.dialog = null;
    /** @type {{id: number, text: string, undo?: () => void}[]} */ this.toasts = [];
    this.isListOpen = false;
    this.announcement = "";
    /** @type {string | null} */ this.target = null; // the message to scroll to
    /** @type {Map<string, any>} */ this.sent = new Map(); // delivered, not yet seen in the feed
    /** @type {Map<string, string>} */ this.pairs = new Map(); // outbox entry -> message or queued message
    this.files = new Attachments(this);
    this.chats = new ChatActions(this);
    this.messages = new MessageActions(this);
    this.newChat = new NewChat(this);
    this.earlier = new EarlierMessages(this);
    /** @type {(() => void) | null} */ this.onDraw = null;
    /** @type {(() => void) | null} */ this.onGrow = null; // draws the conversation, and nothing beside it
    this.isGrowthOnly = true;
    /** @type {number | null} */ this.frame = null;
    this.draft = "";
    this.arrivals = 0; // how often the user has gone to a chat: the focus then goes to the message field
    const storage = localStorage;
    const user = storage.getItem(USER); // of the last visit, until the server has said who it is
    this.outbox = new Outbox({
      api: this.api, storage, user, locks: navigator.locks, onChange: () => this.changed(),
      confirm: async () => this.session.isOver || this.session.load(), onDelivered: (entry, response) => this.#noteDelivery(entry, response),
    });
    this.tab = new Tab({ storage: sessionStorage, locks: navigator.locks, channel: navigator.locks ? undefined : new BroadcastChannel("indelible:tabs") });
    this.drafts = new Drafts({ storage, user, tab: this.tab });
    this.unsaved = new Drafts({ storage, user, tab: this.tab }); // what is typed in dialogs and editors: in this browser only
  }

  // --- drawing ---

  changed(isGrowthOnly = false) {
    this.isGrowthOnly &&= isGrowthOnly;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const draw = (this.isGrowthOnly && this.onGrow) || this.onDraw;
      this.isGrowthOnly = true;
      draw?.();
    });
  }

  get items() {
    return this.chat ? this.thread.build(this.chat) : [];
  }

  /** Messages on their way: not yet in the conversation or the queue. */
  get pending() {
    const chat = this.chat?.id ?? this.place;
    const isHere = (/** @type {any} */ entry) => (this.outbox.resolve(entry.chat) === chat || entry.chat === chat) && !this.pairs.has(entry.key);
    const delivered = [...this.sent.values()].map(({ entry }) => ({ ...entry, state: "sent" }));
    return [...delivered, ...this.outbox.list(chat)].filter(isHere);
  }

  /** What was delivered and can be seen is no longer on its way, whatever becomes of it. */
  #noteSeen() {
    for (const [key, { id }] of this.sent) {
      const isSeen = (/** @type {any} */ one) => one.id === id;
      if (!this.chat?.messages.some(isSeen) && !this.chat?.queue.some(isSeen)) continue;
      this.pairs.set(key, id);
      this.sent.delete(key);
    }
  }

  /** @param {string} route  such as "PUT /chats/{chat_id}/draft" */
  has(route) {
    return this.routes.has(route.replace(" /", " /api/v1/"));
  }

  get isReadOnly() {
    return this.sharedKey !== null || this.chat?.details.read_only === true;
  }

  // --- start ---

  async start() {
    addEventListener("hashchange", () => this.#readAddress());
    addEventListener("online", () => this.comeBack());
    addEventListener("offline", () => this.changed());
    addEventListener("storage", ({ key }) => {
      if (!key?.startsWith("indelible:outbox:")) return;
      this.outbox.load();
      const made = this.outbox.resolve(this.place); // another tab has delivered what began this chat
      if (made !== this.place) {
        history.replaceState(null, "", `#${made}`);
        this.#open(made);
      }
      this.changed();
    });
    addEventListener("pageshow", () => this.tab.noteShown());
    addEventListener("pagehide", () => {
      this.drafts.flushAll();
      void this.chats.finishDeletions();
      this.tab.noteLeft(); // last: there may be no room for it
    });
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.drafts.flushAll();
      else this.#noteRead();
      this.hub?.noteVisibility();
    });
    this.#readAddress();
    this.#showWaiting();
    await this.loadRoutes();
    this.#noteRead();
    if (!this.sharedKey) {
      this.list.start();
      await this.session.start(); // the outbox has to know whose it is
      void this.outbox.flush();
      await this.#loadModels();
    }
    this.changed();
  }

  async #loadModels() {
    if (!this.models.length) this.models = (await this.api.listModels().catch(() => ({ items: [] }))).items;
    this.changed();
  }

  async loadRoutes() {
    this.routes = new Set(await fetch(new URL("web/routes.json", ROOT)).then((response) => response.json()).catch(() => []));
    if (!this.has("PUT /chats/{chat_id}/draft") || this.sharedKey) return;
    Object.assign(this.drafts, { save: this.api.putDraft, load: this.api.getDraft });
    void this.#loadDraft();
  }

  /** A message that was to begin a chat, before the page was reloaded: show it where it was. */
  #showWaiting() {
    const waiting = this.outbox.own.findLast(({ chat }) => this.outbox.resolve(chat).startsWith("new:"));
    if (!this.chat && waiting && this.place.startsWith("new:")) this.place = waiting.chat;
  }

  /** What is typed and what waits belongs to this user: the server says so. @param {string} user */
  setUser(user) {
    const before = this.outbox.user;
    localStorage.setItem(USER, user);
    this.outbox.setUser(user);
    if (before === user) return;
    this.drafts.setUser(user);
    this.unsaved.setUser(user);
    this.#showWaiting();
    void this.#loadDraft();
  }

  /** The server can be reached again, or somebody has logged in again. */
  comeBack() {
    this.earlier.isBroken = false;
    if (!this.session.info) void this.session.load();
    this.hub?.hurry();
    void this.outbox.flush();
    if (!this.sharedKey) {
      this.list.refresh();
      void this.#loadModels();
    }
    this.changed();
  }

  // --- where we are ---

  #readAddress() {
    if (this.sharedKey) return void (this.chat ?? this.#open(null));
    const found = /^#(\w+)(?:\/(\w+))?$/.exec(location.hash);
    if (found && found[1] === this.chat?.id) void this.earlier.show(found[2] ?? null);
    else {
      const field = document.getElementById("message");
      // At once: a frame later the user may type elsewhere. While a dialog is open, nothing below it can have the focus.
      if (!field || document.querySelector("dialog[open]")) this.arrivals += 1;
      else if (!isPhone()) field.focus();
      this.#open(found?.[1] ?? null, found?.[2] ?? null);
    }
  }

  /** @param {string | null} id @param {string | null} [messageId] */
  go(id, messageId = null) {
    const hash = id ? `#${id}${messageId ? `/${messageId}` : ""}` : "";
    this.isListOpen = false;
    if (location.hash === hash && id) return this.changed();
    history.pushState(null, "", hash || location.pathname + location.search);
    this.#readAddress();
  }

  /** First messages of chats that do not exist yet, which could not be sent and are not shown. */
  get unsent() {
    const isUnsent = (/** @type {any} */ { chat, state }) => state !== "sending" && chat !== this.place && this.outbox.resolve(chat).startsWith("new:");
    return this.outbox.own.filter(isUnsent).filter(({ chat }, at, all) => all.findIndex((one) => one.chat === chat) === at);
  }

  /** @param {string} place  of an unsent message */
  goToUnsent(place) {
    this.go(null);
    this.place = place;
  }

  /** @param {string | null} id @param {string | null} [target] */
  #open(id, target = null) {
    const known = id && this.outbox.resolve(this.place) === id ? this.place : null;
    if (id && known?.startsWith("new:") && this.draft) { // typed while the first message was on its way
      this.drafts.clear("new");
      this.drafts.set(id, this.draft);
    }
    if (id && known?.startsWith("new:")) this.files.move(id);
    this.hub?.close();
    this.hub = null;
    this.place = id ?? `new:${newKey()}`;
    this.chat = id || this.sharedKey ? new ChatState(id ?? "shared") : null;
    this.thread = new Thread();
    this.problem = null;
    this.earlier.isBroken = false;
    this.target = target;
    this.connection = { state: this.chat ? "connecting" : "live" };
    if (!known) this.newChat.model = undefined;
    if (this.chat) this.#connect(this.chat);
    void this.#loadDraft();
    this.#writeTitle();
    this.changed();
  }

  /** @param {ChatState} chat */
  #connect(chat) {
    const path = this.sharedKey ? `shared/${this.sharedKey}` : `chats/${chat.id}`;
    for (const { entry, id } of this.sent.values()) if (id && this.outbox.resolve(entry.chat) === chat.id) chat.setKey(id, entry.key);
    this.hub = new FeedHub({
      chatId: this.sharedKey ?? chat.id, locks: navigator.locks,
      open: (cursor) => new EventSource(this.api.url(`${path}/events${cursor ? `?after=${encodeURIComponent(cursor)}` : ""}`)),
      check: async () => {
        if (this.session.isOver) throw new Error("logged out"); // waits for the login
        return this.api.get(path).then(() => true, (error) => {
          if (!isMissing(error)) throw error;
          if (this.chat === chat) this.#leave(this.sharedKey ? error.message : NOT_FOUND);
          return false;
        });
      },
      onEvent: (kind, data) => { if (this.chat === chat) this.#receive(chat, kind, data); },
      onState: (state, retryAt) => this.#noteConnection(state, retryAt),
      readState: () => (chat.loaded ? chat.toSnapshot() : null),
    });
  }

  #leave(problem = NOT_FOUND) {
    this.hub?.close();
    this.hub = null;
    this.chat = null;
    this.files.move("gone"); // like the draft, they stay in sight
    this.place = "gone";
    this.problem = problem;
    this.connection = { state: "live" };
    if (!this.sharedKey) this.list.refresh();
    this.changed();
  }

  /** @param {string} state @param {number} [retryAt] */
  #noteConnection(state, retryAt) {
    if (this.connection.state === "reconnecting" && state !== "reconnecting") this.comeBack();
    this.connection = { state, retryAt };
    this.changed();
  }

  // --- reading ---

  /** @param {ChatState} chat @param {string} kind @param {any} data */
  #receive(chat, kind, data) {
    if (kind === "end") {
      if (data.reason === "deleted") this.#leave();
      return;
    }
    const wasBusy = chat.busy;
    const isFirst = !chat.loaded;
    const queuedBefore = new Set(chat.queue.map(({ id }) => id));
    const { revision } = chat;
    chat.apply(kind, data);
    if (chat.revision === revision) return this.changed(true);
    if (kind === "message" && data.message.role === "user") this.#pair(data.message.id, plainText(data.message.blocks), data.queued);
    if (kind === "queue") {
      for (const queued of data.queue) if (!queuedBefore.has(queued.id)) this.#pair(queued.id, plainText(queued.blocks));
    }
    if (kind === "snapshot") for (const [key, { id }] of this.sent) if (id) chat.setKey(id, key);
    if (this.sent.size && ["snapshot", "message", "queue"].includes(kind)) this.#noteSeen();
    if (kind === "snapshot" && isFirst) {
      // Delivered before, and not here: it has another name by now (it was queued), or is on another branch.
      for (const [key, { entry }] of this.sent) if (this.outbox.resolve(entry.chat) === chat.id) this.sent.delete(key);
      this.#noteRead();
    }
    if (chat.needsSnapshot) this.hub?.resync();
    if (["chat", "status", "snapshot"].includes(kind)) {
      if (!this.sharedKey) this.list.note(chat, { isRead: !document.hidden });
      this.#writeTitle();
    }
    if (chat.busy && !wasBusy) this.announcement = ""; // or the end of the next reply, in the same words, would not be read out
    if (kind === "status" && wasBusy && !chat.busy) this.#noteEnd(chat, data);
    this.changed();
  }

  /** The feed may be faster than the response: the message is the one that we are sending. @param {string} id @param {string} text @param {string} [queued] */
  #pair(id, text, queued) {
    const before = [...this.pairs].find(([, known]) => known === queued)?.[0] ?? [...this.sent].find(([, known]) => known.id === queued)?.[0];
    const entry = before ?? this.outbox.list(this.chat?.id ?? this.place).find((one) => one.text === text && !this.pairs.has(one.key))?.key
      ?? [...this.sent].find(([, known]) => known.id === id)?.[0];
    if (!entry) return;
    this.pairs.set(entry, id);
    this.chat?.setKey(id, entry);
  }

  /** @param {ChatState} chat @param {any} data */
  #noteEnd(chat, data) {
    const outcome = data.ended?.outcome;
    if (!chat.busy) this.announcement = outcome === "failed" ? "The reply failed." : outcome === "interrupted" ? "Stopped. What was written is saved." : "The reply is complete.";
    if (document.hidden && this.preferences.notify && "Notification" in globalThis && Notification.permission === "granted") {
      new Notification(chat.title ?? "Indelible", { body: this.announcement, tag: chat.id });
    }
    this.#noteRead();
  }

  #noteRead() {
    if (!this.chat?.loaded || document.hidden || this.sharedKey || !this.has("POST /chats/{chat_id}/read")) return;
    void this.api.markRead(this.chat.id).catch(() => {});
  }

  #writeTitle() {
    const name = this.titleOf(this.chat);
    document.title = this.chat && name ? `${this.chat.busy ? "● " : ""}${name} · Indelible` : "Indelible";
  }

  /** @param {ChatState | null} chat */
  titleOf(chat) {
    if (!chat) return this.place === "gone" ? "Chat not found" : "New chat";
    const first = chat.messages.find(({ role }) => role === "user");
    return chat.title ?? ((first && plainText(first.blocks).slice(0, 60)) || "New chat");
  }

  // --- writing ---

  /** What is typed and attached belongs to this chat, or to the next new one. */
  get draftName() {
    return this.place.startsWith("new:") ? "new" : this.place;
  }

  async #loadDraft() {
    const { place, draftName } = this;
    this.draft = this.drafts.get(draftName);
    this.changed();
    const found = await this.drafts.fetch(draftName);
    if (this.place === place && !this.draft && found) {
      this.draft = found;
      this.changed();
    }
  }

  /** @param {string} text */
  type(text) {
    this.draft = text;
    this.drafts.set(this.draftName, text);
    this.changed();
  }

  /** Changes to a message that is no longer edited go to the message field of its chat. @param {string} chat @param {string} text @param {string} [why] */
  keepWords(chat, text, why = "") {
    const words = [chat === this.place ? this.draft : this.drafts.get(chat), text].filter(Boolean).join("\n");
    if (chat === this.place) this.type(words);
    else this.drafts.set(chat, words);
    this.toast(`${why}Your changes are in the message field.`);
  }

  /** @param {"queue" | "interrupt" | "steer"} ifBusy */
  send(ifBusy = "queue") {
    const text = this.draft.trim();
    const files = this.files.blocks;
    if ((!text && !this.files.items.length) || this.isReadOnly) return;
    if (this.files.isUploading) return this.toast("Wait for the upload to finish.");
    if (this.files.failed) return this.toast(`${this.files.failed.name} is not uploaded. ${this.files.failed.isRefused ? "Remove it." : "Retry or remove it."}`);
    const content = files.length ? [...(text ? [{ type: "text", text }] : []), ...files] : null;
    const { place, draftName } = this;
    const busy = this.chat?.busy && ifBusy !== "queue" ? { if_busy: ifBusy } : {};
    const extra = place.startsWith("new:") ? this.newChat.take(place) : {};
    const to = place === "gone" ? `new:${newKey()}` : place;
    this.outbox.add(to, text, { ...(content ? { content } : { text }), ...busy, ...extra });
    this.problem = null;
    this.draft = "";
    this.files.clear();
    this.drafts.clear(draftName);
    this.place = to;
    this.target = "end";
    if ("Notification" in globalThis && this.preferences.notify && Notification.permission === "default") void Notification.requestPermission();
    this.changed();
  }

  /** @param {any} entry @param {any} response */
  #noteDelivery(entry, response) {
    const id = response.message ?? response.queued ?? this.pairs.get(entry.key);
    this.sent.set(entry.key, { entry, id });
    if (id) this.chat?.setKey(id, entry.key);
    if (entry.chat === this.place && entry.chat.startsWith("new:") && response.id) {
      history.replaceState(null, "", `#${response.id}`);
      this.#open(response.id);
    }
    this.#noteSeen();
    this.list.refresh();
    this.changed();
  }

  /** Take a message out of the outbox and into the composer. @param {string} key */
  editPending(key) {
    const entry = this.outbox.remove(key);
    if (!entry) return;
    this.newChat.putBack(entry);
    this.files.restore(entry.body.content ?? []);
    this.type([entry.text, this.draft].filter(Boolean).join("\n"));
    void this.outbox.flush(); // what waited behind it
  }

  stop() {
    const { chat } = this;
    if (!chat || this.isReadOnly || chat.status === "interrupting" || (!chat.busy && chat.status !== "requires_action")) return;
    chat.status = "interrupting";
    this.changed();
    void this.attempt(() => this.api.interrupt(chat.id, chat.turn)).then((done) => {
      if (!done) this.hub?.resync(); // it was not stopped: show what is true
    });
  }

  /** Do something; what goes wrong is said. @template T @param {() => Promise<T>} action @returns {Promise<T | undefined>} */
  async attempt(action) {
    try {
      return await action();
    } catch (error) {
      this.complain(error);
      return undefined;
    }
  }

  /** @param {any} error */
  complain(error) {
    this.toast(isLost(error) ? "The server is unreachable. Try again when it is back." : error.message);
  }

  /** @param {string} text @param {() => void} [undo] */
  toast(text, undo) {
    const id = Math.random();
    this.toasts = [...this.toasts, { id, text, undo }];
    setTimeout(() => this.closeToast(id), UNDO_MS);
    this.changed();
  }

  /** @param {number} id */
  closeToast(id) {
    this.toasts = this.toasts.filter((toast) => toast.id !== id);
    this.changed();
  }

  /** @param {any} dialog */
  show(dialog) {
    this.dialog = dialog;
    this.changed();
  }
}
