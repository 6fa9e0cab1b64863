// The list of chats: pages, search, and what changes in other tabs and other chats.
//
// With `GET /events` one tab of the browser reads the list's feed and tells the others; without it the list is read
// again when something happens and when the tab is shown. A deleted chat is hidden until its deletion can no longer be
// undone.

import { has } from "./state.js";

/** @import { Api } from "../core/api.js" */
/** @import { ChatState } from "../core/chat.js" */
/** @import { ChatSummary, ListEvent } from "../core/shapes.js" */
/** @import { Slice } from "./state.js" */
/** @import { Toasts } from "./toasts.js" */

const REFRESH_MS = 30_000;
const AWAY_MS = 5000; // without a feed: how often a server is asked that is away, or may be
const REOPEN_MS = 3000;
const TYPING_MS = 150;

export class ChatList {
  /** @param {{store: Slice<"routes" | "chat" | "isLoggedOut">, api: Api, toasts: Toasts}} parts */
  constructor({ store, api, toasts }) {
    this.store = store;
    this.api = api;
    this.toasts = toasts;
    /** @type {ChatSummary[]} */ this.items = [];
    /** @type {string | null} */ this.next = null;
    this.isLoaded = false;
    this.showsArchived = false;
    this.query = "";
    /** @type {ChatSummary[] | null} */ this.found = null;
    /** @type {string | null} */ this.foundNext = null;
    /** @type {Set<string>} */ this.hidden = new Set();
    /** @type {number | undefined} */ this.timer = undefined;
    this.isStale = false;
    this.isReading = false;
    this.wantsMore = false; // the end of the list came into view while it was read
    this.hasFeed = false;
    /** @type {ListEvent[]} */ this.arrived = []; // events that came while the list was read
  }

  start() {
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.refresh(); });
    setInterval(() => { if (!document.hidden && !this.hasFeed) this.refresh(); }, REFRESH_MS);
    setInterval(() => {
      if (!document.hidden && !this.hasFeed && (this.api.isAway || !this.store.state.chat)) this.refresh(); // without any feed nothing else tells that the server has gone
    }, AWAY_MS);
    this.refresh();
    if (has(this.store.state, "GET /events") && navigator.locks) void this.#lead();
  }

  async #lead() {
    const channel = new BroadcastChannel("indelible:list");
    const ask = () => { if (!document.hidden) this.refresh(); }; // is the server away, or only the feed?
    channel.onmessage = ({ data }) => (data.kind ? this.#receive([data.kind, data.data]) : ask());
    this.hasFeed = true;
    await navigator.locks.request("indelible:list", () => new Promise(() => {
      const later = () => setTimeout(() => (this.store.state.isLoggedOut ? later() : open()), REOPEN_MS);
      const open = () => {
        const source = new EventSource(this.api.url("events"));
        for (const kind of ["chats", "chat_changed", "chat_removed"]) {
          source.addEventListener(kind, (event) => {
            const data = JSON.parse(/** @type {MessageEvent} */ (event).data);
            this.#receive(/** @type {ListEvent} */ ([kind, data]));
            channel.postMessage({ kind, data });
          });
        }
        source.onerror = () => {
          source.close();
          channel.postMessage({});
          ask();
          later();
        };
      };
      open();
    }));
  }

  /** @param {ListEvent} event */
  #receive(event) {
    this.api.noteServer(true);
    if (this.isReading) this.arrived.push(event);
    this.#apply(event);
    if (event[0] === "chats" && this.isLoaded) this.refresh(); // connected again: what was removed meanwhile is not in it
  }

  /** @param {ListEvent} event */
  #apply([kind, data]) {
    if (kind === "chats") this.#merge(data.items);
    else if (kind === "chat_changed") this.#merge([data]);
    else if (kind === "chat_removed") {
      this.items = this.items.filter(({ id }) => id !== data.id);
      this.found = this.found?.filter(({ id }) => id !== data.id) ?? null;
    }
    this.store.changed();
  }

  /** @param {ChatSummary[]} changed */
  #merge(changed) {
    for (const item of changed) this.#patchFound(item.id, item);
    const known = new Map(this.items.map((item) => [item.id, item]));
    for (const item of changed) {
      const before = known.get(item.id);
      if (!before || !(before.version > item.version)) known.set(item.id, { ...before, ...item });
    }
    this.items = [...known.values()]
      .filter(({ archived }) => Boolean(archived) === this.showsArchived)
      .sort((a, b) => Number(b.pinned) - Number(a.pinned) || b.updated_at.localeCompare(a.updated_at));
  }

  get shown() {
    return (this.found ?? this.items).filter(({ id }) => !this.hidden.has(id));
  }

  /** A search also finds chats of pages that were not loaded. @param {string} id */
  find(id) {
    return this.items.find((item) => item.id === id) ?? this.found?.find((item) => item.id === id);
  }

  /** @param {string} id @param {Partial<ChatSummary>} changes */
  patch(id, changes) {
    this.items = this.items.map((item) => (item.id === id ? { ...item, ...changes } : item));
    this.#patchFound(id, changes);
    this.store.changed();
  }

  /** What was found stays in the list of results, as it is now. @param {string} id @param {Partial<ChatSummary>} changes */
  #patchFound(id, changes) {
    this.found = this.found?.map((item) => (item.id === id ? { ...item, ...changes } : item)) ?? null;
  }

  /** @param {string} id @param {boolean} isHidden */
  hide(id, isHidden) {
    if (isHidden) this.hidden.add(id);
    else this.hidden.delete(id);
    this.hidden = new Set(this.hidden);
    this.store.changed();
  }

  /** What the feed of the open chat has told. @param {ChatState} chat @param {{isRead: boolean}} how */
  note(chat, { isRead }) {
    if (!this.items.some(({ id }) => id === chat.id)) this.refresh();
    this.patch(chat.id, { title: chat.title, status: chat.status, ...(isRead ? { unread: false } : {}) });
  }

  /** Read the first page again; several wishes at once are one request. */
  refresh() {
    if (this.isReading) {
      this.isStale = true;
      return;
    }
    this.isReading = true;
    void this.#read().finally(() => {
      this.isReading = false;
      if (this.isStale) {
        this.isStale = false;
        this.refresh();
      }
      if (this.wantsMore) {
        this.wantsMore = false;
        void this.loadMore();
      }
    });
  }

  async #read() {
    const { showsArchived } = this;
    this.arrived = [];
    if (this.store.state.isLoggedOut) return;
    const page = await this.api.listChats({ archived: showsArchived }).catch(() => null);
    if (!page || showsArchived !== this.showsArchived) return; // keep the old list
    const first = new Set(page.items.map(({ id }) => id));
    const last = page.items.at(-1);
    // Later pages that were loaded stay below.
    const below = page.next && this.items.length > page.items.length
      ? this.items.filter(({ id, pinned, updated_at }) => !first.has(id) && !pinned && last && updated_at <= last.updated_at)
      : [];
    if (!below.length) this.next = page.next;
    this.items = [...page.items, ...below];
    for (const event of this.arrived) this.#apply(event); // newer than the page, or not older
    this.isLoaded = true;
    this.store.changed();
  }

  /** Where the list that is shown goes on. */
  get more() {
    return this.found ? this.foundNext : this.next;
  }

  async loadMore() {
    if (this.found) return this.#search(this.query.trim(), this.foundNext);
    const { next } = this;
    this.wantsMore = this.isReading;
    if (!next || this.isReading) return;
    const page = await this.toasts.attempt(() => this.api.listChats({ cursor: next, archived: this.showsArchived }));
    if (!page || this.next !== next) return; // another list, or another first page
    const known = new Set(this.items.map(({ id }) => id));
    this.items = [...this.items, ...page.items.filter(({ id }) => !known.has(id))];
    this.next = page.next;
    this.store.changed();
  }

  /** @param {boolean} isArchived */
  showArchived(isArchived) {
    this.showsArchived = isArchived;
    this.items = [];
    this.next = null;
    this.found = null;
    if (this.query.trim()) this.search(this.query);
    this.refresh();
    this.store.changed();
  }

  /** @param {string} text */
  search(text) {
    this.query = text;
    clearTimeout(this.timer);
    if (!text.trim()) this.found = null;
    else this.timer = setTimeout(() => void this.#search(text.trim()), TYPING_MS);
    this.store.changed();
  }

  /** @param {string} text @param {string | null} [cursor] */
  async #search(text, cursor = null) {
    const { showsArchived } = this;
    const page = await this.toasts.attempt(() => this.api.listChats({ q: text, cursor, archived: showsArchived }));
    if (!page || this.query.trim() !== text || showsArchived !== this.showsArchived) return;
    if (cursor && cursor !== this.foundNext) return; // it was loaded meanwhile, or the search has begun anew
    this.found = cursor ? [...(this.found ?? []), ...page.items] : page.items;
    this.foundNext = page.next;
    this.store.changed();
  }
}
