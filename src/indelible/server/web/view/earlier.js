// The messages above those that are shown: loaded a page at a time, and until a certain one is there.
//
// The next page is the one before the first message that is shown, so it is the right one on every branch. A page that
// comes when another chat or another branch is shown is dropped.

/** @import { Api } from "../core/api.js" */
/** @import { Conversation } from "./conversation.js" */
/** @import { Slice } from "./state.js" */
/** @import { Toasts } from "./toasts.js" */

export class EarlierMessages {
  /** @param {{store: Slice<"chat" | "target" | "isLoadingEarlier" | "isEarlierBroken">, api: Api, toasts: Toasts, conversation: Pick<Conversation, "path">}} parts */
  constructor({ store, api, toasts, conversation }) {
    this.store = store;
    this.api = api;
    this.toasts = toasts;
    this.conversation = conversation;
  }

  async load() {
    const { state } = this.store;
    const { chat } = state;
    if (!chat?.hasMore || state.isLoadingEarlier) return;
    this.store.set({ isLoadingEarlier: true });
    try {
      const before = chat.messages[0]?.id ?? null;
      const page = await this.api.listMessages(this.conversation.path, before);
      if (state.chat !== chat || (chat.messages[0]?.id ?? null) !== before) return;
      state.isEarlierBroken = false;
      chat.prepend(page.items, page.next !== null);
    } catch (error) {
      if (state.chat === chat) state.isEarlierBroken = true;
      this.toasts.complain(error);
    } finally {
      this.store.set({ isLoadingEarlier: false });
    }
  }

  /** Show this message: load earlier ones until it is there. @param {string | null} messageId */
  async show(messageId) {
    const { state } = this.store;
    const { chat } = state;
    if (state.target !== messageId) this.store.set({ target: messageId });
    if (!messageId || !chat?.loaded || state.isLoadingEarlier) return;
    while (state.target === messageId && state.chat === chat && !chat.messages.some(({ id }) => id === messageId)) {
      const before = chat.messages.length;
      await this.load();
      if (chat.messages.length > before || state.target !== messageId || state.chat !== chat) continue;
      state.target = null;
      if (!state.isEarlierBroken) this.toasts.show("This message is in another version of the chat.");
    }
  }
}
