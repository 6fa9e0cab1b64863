// A message is seen once on its way from the outbox into the conversation, whether the response or the feed is first.

import assert from "node:assert/strict";
import { test } from "node:test";
import { ChatState } from "../../src/indelible/server/web/core/chat.js";
import { Delivery } from "../../src/indelible/server/web/core/delivery.js";
import { message, snapshot } from "./stand_ins.mjs";

const entry = (key, text, chat = "chat_1") => ({ key, chat, text, body: { text }, at: 1, state: "sending", user: "" });

/** A chat and what waits for it. `made`: the ids of chats that were created from here. */
function open(waiting, { made = {}, queue = [] } = {}) {
  const resolve = (chat) => made[chat] ?? chat;
  const outbox = { waiting, resolve, list: (chat) => outbox.waiting.filter((one) => resolve(one.chat) === chat || one.chat === chat) };
  const delivery = new Delivery(outbox);
  const chat = new ChatState("chat_1");
  const apply = (kind, data) => {
    const before = { isFirst: !chat.loaded, queuedBefore: new Set(chat.queue.map(({ id }) => id)) };
    chat.apply(kind, data);
    delivery.noteEvent(chat, [kind, data], before);
  };
  apply("snapshot", snapshot([], { queue }));
  const deliver = (sent, response) => {
    outbox.waiting = outbox.waiting.filter((one) => one !== sent);
    delivery.noteResponse(sent, response, chat);
    delivery.noteSeen(chat);
  };
  return { delivery, chat, apply, deliver, texts: () => delivery.list("chat_1").map(({ text, state }) => [text, state]) };
}

test("a message whose response is first stays in sight until the feed has it, under the key of its entry", () => {
  const sent = entry("k1", "Hello");
  const { chat, apply, deliver, texts } = open([sent]);
  assert.deepEqual(texts(), [["Hello", "sending"]]);
  deliver(sent, { message: "m1" });
  assert.deepEqual(texts(), [["Hello", "sent"]]);
  apply("message", { message: message("m1", "user", "Hello") });
  assert.deepEqual([texts(), chat.keys.get("m1")], [[], "k1"]);
});

test("a message that the feed shows before its response is not shown twice", () => {
  const [first, second] = [entry("k1", "Hello"), entry("k2", "Hello")];
  const { chat, apply, deliver, texts } = open([first, second]);
  apply("message", { message: message("m1", "user", "Hello") });
  assert.deepEqual([texts(), chat.keys.get("m1")], [[["Hello", "sending"]], "k1"]);
  deliver(first, { message: "m1" });
  assert.deepEqual(texts(), [["Hello", "sending"]]);
});

test("a queued message keeps its key when its turn comes", () => {
  const sent = entry("k1", "Next");
  const { delivery, chat, apply, deliver, texts } = open([sent]);
  apply("queue", { queue: [{ id: "q1", blocks: [{ type: "text", text: "Next" }], if_busy: "queue", model: null }] });
  deliver(sent, { queued: "q1" });
  assert.deepEqual([texts(), delivery.pairs.get("k1")], [[], "q1"]);
  apply("message", { message: message("m1", "user", "Next"), queued: "q1" });
  assert.deepEqual([delivery.pairs.get("k1"), chat.keys.get("m1")], ["m1", "k1"]);
});

test("what began a chat is shown in it, and forgotten when a later visit shows another branch", () => {
  const sent = entry("k1", "Hello", "new:1");
  const made = { "new:1": "chat_1" };
  const { delivery, deliver, texts } = open([sent], { made });
  deliver(sent, { id: "chat_1", message: "m1" });
  const again = new ChatState("chat_1");
  delivery.nameMessages(again);
  assert.deepEqual([texts(), again.keys.get("m1")], [[["Hello", "sent"]], "k1"]);
  again.apply("snapshot", snapshot([]));
  delivery.noteEvent(again, ["snapshot", snapshot([])], { isFirst: true, queuedBefore: new Set() });
  assert.deepEqual(texts(), []);
});
