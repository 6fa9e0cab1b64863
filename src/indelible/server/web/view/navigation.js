// Where we are: the address names the chat that is shown, and perhaps a message of it.

import { isPhone } from "./preferences.js";

/** @import { Outbox } from "../core/outbox.js" */
/** @import { Conversation } from "./conversation.js" */
/** @import { EarlierMessages } from "./earlier.js" */
/** @import { Slice } from "./state.js" */

export class Navigation {
  /**
   * @param {{store: Slice<"place" | "chat" | "sharedKey" | "isListOpen" | "arrivals">, conversation: Pick<Conversation, "open">,
   *   earlier: Pick<EarlierMessages, "show">, outbox: Pick<Outbox, "own" | "resolve">}} parts
   */
  constructor({ store, conversation, earlier, outbox }) {
    this.store = store;
    this.conversation = conversation;
    this.earlier = earlier;
    this.outbox = outbox;
  }

  readAddress() {
    const { state } = this.store;
    if (state.sharedKey) return void (state.chat ?? this.conversation.open(null));
    const found = /^#(\w+)(?:\/(\w+))?$/.exec(location.hash);
    if (found && found[1] === state.chat?.id) return void this.earlier.show(found[2] ?? null);
    const field = document.getElementById("message");
    // At once: a frame later the user may type elsewhere. While a dialog is open, nothing below it can have the focus.
    if (!field || document.querySelector("dialog[open]")) state.arrivals += 1;
    else if (!isPhone()) field.focus();
    this.conversation.open(found?.[1] ?? null, found?.[2] ?? null);
  }

  /** @param {string | null} id  null: a new chat @param {string | null} [messageId] */
  go(id, messageId = null) {
    const hash = id ? `#${id}${messageId ? `/${messageId}` : ""}` : "";
    this.store.set({ isListOpen: false });
    if (location.hash === hash && id) return;
    history.pushState(null, "", hash || location.pathname + location.search);
    this.readAddress();
  }

  /** First messages of chats that do not exist yet, which could not be sent and are not shown. */
  get unsent() {
    const { place } = this.store.state;
    const found = this.outbox.own.filter(({ chat, state }) => state !== "sending" && chat !== place && this.outbox.resolve(chat).startsWith("new:"));
    return found.filter(({ chat }, at) => found.findIndex((one) => one.chat === chat) === at);
  }

  /** @param {string} place  of an unsent message */
  goToUnsent(place) {
    this.go(null);
    this.store.set({ place });
  }

  /** A message that was to begin a chat, before the page was reloaded: show it where it was. */
  showWaiting() {
    const { chat, place } = this.store.state;
    const waiting = this.outbox.own.findLast((entry) => this.outbox.resolve(entry.chat).startsWith("new:"));
    if (!chat && waiting && place.startsWith("new:")) this.store.set({ place: waiting.chat });
  }
}
