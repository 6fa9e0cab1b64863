// What the user writes: the draft of the chat that is shown, and sending it. It never waits for the server: what is sent
// goes into the outbox (core/outbox.js).

import { draftName, isReadOnly, newPlace } from "./state.js";

/** @import { Drafts } from "../core/drafts.js" */
/** @import { Outbox } from "../core/outbox.js" */
/** @import { Block, IfBusy } from "../core/shapes.js" */
/** @import { Attachments } from "./attachments.js" */
/** @import { NewChat } from "./newchat.js" */
/** @import { Preferences } from "./preferences.js" */
/** @import { Slice } from "./state.js" */
/** @import { Toasts } from "./toasts.js" */

export class Writing {
  /**
   * @param {{store: Slice<"place" | "chat" | "sharedKey" | "draft" | "problem" | "target">, toasts: Toasts, drafts: Drafts, outbox: Outbox, files: Attachments,
   *   newChat: NewChat, preferences: Pick<Preferences, "notify">}} parts
   */
  constructor({ store, toasts, drafts, outbox, files, newChat, preferences }) {
    this.store = store;
    this.toasts = toasts;
    this.drafts = drafts;
    this.outbox = outbox;
    this.files = files;
    this.newChat = newChat;
    this.preferences = preferences;
  }

  /** Show the draft of the chat that is shown. */
  async load() {
    const { state } = this.store;
    const { place } = state;
    const name = draftName(state);
    this.store.set({ draft: this.drafts.get(name) });
    const draft = await this.drafts.fetch(name);
    if (state.place === place && !state.draft && draft) this.store.set({ draft });
  }

  /** The chat that is begun here has been created: what was typed and attached while its first message was on its way is its own. @param {string} chat */
  move(chat) {
    const { draft } = this.store.state;
    if (draft) {
      this.drafts.clear("new");
      this.drafts.set(chat, draft);
    }
    this.files.move(chat);
  }

  /** The chat that is shown is gone: like the draft, the files stay in sight. */
  leave() {
    this.files.move("gone");
  }

  /** @param {string} draft */
  type(draft) {
    this.store.set({ draft });
    this.drafts.set(draftName(this.store.state), draft);
  }

  /** Changes to a message that is no longer edited go to the message field of its chat. @param {string} chat @param {string} text @param {string} [why] */
  keep(chat, text, why = "") {
    const { place, draft } = this.store.state;
    const words = [chat === place ? draft : this.drafts.get(chat), text].filter(Boolean).join("\n");
    if (chat === place) this.type(words);
    else this.drafts.set(chat, words);
    this.toasts.show(`${why}Your changes are in the message field.`);
  }

  /** @param {IfBusy} ifBusy */
  send(ifBusy = "queue") {
    const { store, files, toasts } = this;
    const { state } = store;
    const text = state.draft.trim();
    const { blocks, failed } = files;
    if ((!text && !files.items.length) || isReadOnly(state)) return;
    if (files.isUploading) return toasts.show("Wait for the upload to finish.");
    if (failed) return toasts.show(`${failed.name} is not uploaded. ${failed.isRefused ? "Remove it." : "Retry or remove it."}`);
    /** @type {Block[]} */
    const words = text ? [{ type: "text", text }] : [];
    const busy = state.chat?.busy && ifBusy !== "queue" ? { if_busy: ifBusy } : {};
    const extra = state.place.startsWith("new:") ? this.newChat.take(state.place) : {};
    const place = state.place === "gone" ? newPlace() : state.place;
    this.outbox.add(place, text, { ...(blocks.length ? { content: [...words, ...blocks] } : { text }), ...busy, ...extra });
    files.clear();
    this.drafts.clear(draftName(state));
    store.set({ problem: null, draft: "", place, target: "end" });
    if ("Notification" in globalThis && this.preferences.notify && Notification.permission === "default") void Notification.requestPermission();
  }

  /** Take a message out of the outbox and into the composer. @param {string} key */
  takeBack(key) {
    const entry = this.outbox.remove(key);
    if (!entry) return;
    this.newChat.putBack(entry);
    this.files.restore(entry.body.content ?? []);
    this.type([entry.text, this.store.state.draft].filter(Boolean).join("\n"));
    void this.outbox.flush(); // what waited behind it
  }
}
