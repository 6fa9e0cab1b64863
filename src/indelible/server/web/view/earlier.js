// The messages above those that are shown: loaded a page at a time, and until a certain one is there.
//
// The next page is the one before the first message that is shown, so it is the right one on every branch. A page that
// comes when another chat or another branch is shown is dropped.

export class EarlierMessages {
  /** @param {import("./controller.js").Controller} controller */
  constructor(controller) {
    this.controller = controller;
    this.isLoading = false;
    this.isBroken = false; // loading has failed: not again by itself
  }

  async load() {
    const { controller } = this;
    const { chat, sharedKey, api } = controller;
    if (!chat?.hasMore || this.isLoading) return;
    this.isLoading = true;
    controller.changed();
    try {
      const before = chat.messages[0]?.id ?? null;
      const page = sharedKey
        ? await api.get(`shared/${sharedKey}/messages?limit=64${before ? `&before=${encodeURIComponent(before)}` : ""}`)
        : await api.listMessages(chat.id, before);
      if (controller.chat !== chat || (chat.messages[0]?.id ?? null) !== before) return;
      this.isBroken = false;
      chat.prepend(page.items, page.next !== null);
    } catch (error) {
      if (controller.chat === chat) this.isBroken = true;
      controller.complain(error);
    } finally {
      this.isLoading = false;
      controller.changed();
    }
  }

  /** Show this message: load earlier ones until it is there. @param {string | null} messageId */
  async show(messageId) {
    const { controller } = this;
    const { chat } = controller;
    if (controller.target !== messageId) {
      controller.target = messageId;
      controller.changed();
    }
    if (!messageId || !chat?.loaded || this.isLoading) return;
    while (controller.target === messageId && controller.chat === chat && !chat.messages.some(({ id }) => id === messageId)) {
      const before = chat.messages.length;
      await this.load();
      if (chat.messages.length > before || controller.target !== messageId || controller.chat !== chat) continue;
      controller.target = null;
      if (!this.isBroken) controller.toast("This message is in another version of the chat.");
    }
  }
}
