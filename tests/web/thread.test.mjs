// Parts, events and items: what is shown has the same keys and the same text while a reply runs and after it.

import assert from "node:assert/strict";
import { test } from "node:test";
import { ChatState } from "../../src/indelible/server/web/core/chat.js";
import { MarkdownDocument } from "../../src/indelible/server/web/core/markdown.js";
import { copyText, makePendingItem, outcomeOf, Thread } from "../../src/indelible/server/web/core/thread.js";
import { message, snapshot } from "./stand_ins.mjs";

function open(messages, more) {
  const chat = new ChatState("chat_1");
  chat.apply("snapshot", snapshot(messages, more));
  return [chat, new Thread()];
}

const PARTS = [
  { type: "reasoning_start", id: "r", at: "2026-01-01T12:00:00Z" }, { type: "reasoning_delta", id: "r", delta: "Hm." },
  { type: "reasoning_end", id: "r", at: "2026-01-01T12:00:04Z" }, { type: "text_delta", id: "t", delta: "It " },
  { type: "text_delta", id: "t", delta: "rains." }, { type: "text_end", id: "t" },
  { type: "tool_input_start", id: "c1", name: "weather" }, { type: "tool_input_delta", id: "c1", delta: '{"city"' },
  { type: "tool_call", id: "c1", name: "weather", arguments: '{"city": "Oslo"}' }, { type: "tool_started", call_id: "c1", name: "weather" },
  { type: "tool_progress", call_id: "c1", message: "looking" }, { type: "tool_result", call_id: "c1", name: "weather", output: "Rain" },
];

/** @param {string} id @param {string} text @param {string} kind */
const notice = (id, text, kind) => message(id, "notice", null, { blocks: [{ type: "text", text, metadata: { notice: kind } }] });

test("the keys and the text of a reply are the same before and after it ends", () => {
  const [chat, thread] = open([message("m1", "user", "Rain?")], { status: "running", turn: "t1" });
  chat.apply("attempt", { attempt: "a1", model: "demo" });
  chat.apply("part", { attempt: "a1", parts: PARTS });
  const live = thread.build(chat).at(-1);
  assert.equal(live.live, true);
  const blocks = [
    { type: "reasoning", text: "Hm.", started_at: "2026-01-01T12:00:00Z", ended_at: "2026-01-01T12:00:04Z" }, { type: "text", text: "It rains." },
    { type: "tool_call", id: "c1", name: "weather", arguments: '{"city": "Oslo"}' },
  ];
  chat.apply("message", { message: message("m2", "assistant", null, { parent_id: "m1", blocks }), attempt: "a1" });
  chat.apply("message", { message: message("m3", "tool", null, { blocks: [{ type: "tool_result", call_id: "c1", name: "weather", output: "Rain" }] }), attempt: null });
  const stored = thread.build(chat).at(-1);
  assert.equal(stored.live, false);
  assert.deepEqual([stored.key, stored.blocks.map(({ key }) => key)], [live.key, live.blocks.map(({ key }) => key)]);
  assert.deepEqual(stored.blocks.map(({ type }) => type), ["thinking", "text", "tool"]);
  assert.equal(copyText(stored), copyText(live));
  assert.equal(stored.blocks[2].result.output, "Rain");
  assert.equal(live.blocks[2].call.progress, "looking");
});

test("a token changes the last item of the last page, and earlier messages leave all pages as they are", () => {
  const all = Array.from({ length: 400 }, (_, at) => message(`m${at}`, at % 2 ? "assistant" : "user", `Message ${at}`, { parent_id: at ? `m${at - 1}` : null }));
  const [chat, thread] = open(all.slice(150), { status: "running", has_more: true });
  const pages = () => thread.paginate(thread.build(chat));
  chat.apply("message", { message: message("m400", "user", "Go on.", { parent_id: "m399" }), attempt: null });
  chat.apply("attempt", { attempt: "a1" });
  const before = pages();
  chat.apply("part", { attempt: "a1", parts: [{ type: "text_delta", id: "t", delta: "It" }] });
  const after = pages();
  assert.equal(after.length, before.length);
  assert.deepEqual(after.slice(0, -1).map((page, at) => page === before[at]), before.slice(0, -1).map(() => true));
  assert.equal(after.at(-1).at(-1).blocks[0].text, "It");
  assert.equal(thread.paginate(thread.items), after);
  chat.prepend(all.slice(50, 150), true);
  const longer = pages();
  assert.ok(after.slice(0, -1).every((page) => longer.includes(page)), "what was there is not drawn again");
  assert.deepEqual(longer.flat().map(({ key }) => key), thread.items.map(({ key }) => key));
  assert.ok(longer.every((page) => page.length <= 64));
});

test("a notice that the card of the error repeats is not shown", () => {
  const [chat, thread] = open([message("m1", "user", "Rain?"), notice("m2", "The key is wrong.", "failed")], { status: "error" });
  assert.equal(thread.build(chat).length, 2);
  chat.apply("error", { kind: "auth", message: "Der Schlüssel ist falsch." });
  assert.equal(thread.build(chat).length, 1);
});

test("the next step of a turn belongs to the same reply", () => {
  const call = { type: "tool_call", id: "c1", name: "f", arguments: "{}" };
  const [chat, thread] = open([
    message("m1", "user", "Do it."), message("m2", "assistant", null, { blocks: [call] }),
    message("m3", "tool", null, { blocks: [{ type: "tool_result", call_id: "c1", name: "f", output: "done" }] }),
  ], { status: "running" });
  chat.apply("attempt", { attempt: "a2" });
  chat.apply("part", { attempt: "a2", parts: [{ type: "text_delta", id: "1", delta: "Done." }] });
  const items = thread.build(chat);
  assert.deepEqual(items.map(({ key, live }) => [key, live]), [["m1", false], ["m2", true]]);
  assert.deepEqual(items[1].blocks.map(({ type }) => type), ["tool", "text"]);
  assert.equal(items[1].blocks[1].marks.length, 0);
});

test("an interrupted reply that was continued is one text with a mark, and thinking stands above it", () => {
  const [chat, thread] = open([message("m1", "user", "Count."), message("m2", "assistant", "1 2 ", { partial: true, reason: "crashed" })], { status: "running" });
  chat.apply("attempt", { attempt: "a2" });
  chat.apply("part", { attempt: "a2", parts: [{ type: "reasoning_delta", id: "r", delta: "On." }, { type: "text_delta", id: "t", delta: "3 4" }] });
  const check = (item) => {
    assert.deepEqual(item.blocks.map(({ type, text }) => [type, text]), [["thinking", "On."], ["text", "1 2 3 4"]]);
    assert.deepEqual(item.blocks[1].marks, [{ at: 4, reason: "crashed" }]);
    assert.equal(item.cut, false);
  };
  const live = thread.build(chat)[1];
  check(live);
  const blocks = [{ type: "reasoning", text: "On." }, { type: "text", text: "3 4" }];
  chat.apply("message", { message: message("m3", "assistant", null, { blocks, continues: "m2" }), attempt: "a2" });
  const stored = thread.build(chat)[1];
  check(stored);
  assert.equal(thread.build(chat).length, 2);
  assert.deepEqual(stored.blocks.map(({ key }) => key), live.blocks.map(({ key }) => key));
});

test("a stop is told once, and disappears when the reply is continued", () => {
  const cut = message("m2", "assistant", "It r", { partial: true, reason: "interrupted" });
  const [chat, thread] = open([message("m1", "user", "?"), cut, notice("n", "Stopped by you.", "stopped")]);
  assert.deepEqual(thread.build(chat).map(({ kind, cut: isCut }) => [kind, isCut]), [["user", false], ["reply", true]]);
  chat.apply("message", { message: message("m3", "assistant", "ains.", { continues: "m2" }), attempt: "a9" });
  const [, reply] = thread.build(chat);
  assert.equal(copyText(reply), "It rains.");
  assert.deepEqual(reply.blocks[0].marks, [{ at: 4, reason: "interrupted" }]);
});

test("a stop before the first word is a notice of its own", () => {
  const [chat, thread] = open([message("m1", "user", "?"), notice("n", "Stopped by you.", "stopped")]);
  assert.deepEqual(thread.build(chat).map(({ kind }) => kind), ["user", "notice"]);
});

test("an item that did not change is the same object", () => {
  const [chat, thread] = open([message("m1", "user", "a"), message("m2", "assistant", "b", { parent_id: "m1" })]);
  const before = thread.build(chat);
  chat.apply("message", { message: message("m3", "user", "c", { parent_id: "m2" }), attempt: null });
  const after = thread.build(chat);
  assert.equal(after[0], before[0]);
  assert.equal(after[1], before[1]);
});

test("an edit shortens the conversation and adds an alternative; another branch asks for a snapshot", () => {
  const [chat, thread] = open([message("m1", "user", "a"), message("m2", "assistant", "b", { parent_id: "m1" }), message("m3", "user", "c", { parent_id: "m2", siblings: ["m3"] })]);
  chat.apply("head", { head: "m2" });
  chat.apply("message", { message: message("m4", "user", "d", { parent_id: "m2" }), attempt: null });
  assert.deepEqual(thread.build(chat).at(-1).siblings, ["m3", "m4"]);
  assert.equal(chat.needsSnapshot, false);
  chat.apply("head", { head: "m3" });
  assert.equal(chat.needsSnapshot, true);
  chat.apply("head", { head: null });
  assert.deepEqual(chat.messages, []);
});

test("a later snapshot keeps what was scrolled to, if it still fits", () => {
  const [chat] = open([message("m3", "user", "c")], { has_more: true });
  chat.prepend([message("m1", "user", "a"), message("m2", "assistant", "b")], false);
  chat.apply("snapshot", snapshot([message("m3", "user", "c"), message("m4", "assistant", "d")], { has_more: true }));
  assert.deepEqual(chat.messages.map(({ id }) => id), ["m1", "m2", "m3", "m4"]);
  assert.equal(chat.hasMore, false);
  chat.apply("snapshot", snapshot([message("m9", "user", "x")], { has_more: true }));
  assert.deepEqual(chat.messages.map(({ id }) => id), ["m9"]);
});

test("the rest of the feed: status, queue, retry, action, error, details", () => {
  const [chat] = open([], { status: "pending" });
  chat.apply("attempt", { attempt: "a1" });
  assert.deepEqual([chat.status, chat.busy], ["running", true]);
  chat.apply("retry", { attempt: "a1", delay_ms: 1000, message: "Busy." });
  assert.equal(chat.live, null);
  chat.apply("queue", { queue: [{ id: "q1" }] });
  chat.apply("action", { calls: [{ id: "c" }], deadline_at: null });
  assert.equal(chat.action.calls.length, 1);
  chat.apply("error", { kind: "auth", message: "No." });
  chat.apply("status", { status: "error", turn: null, ended: { outcome: "failed" } });
  assert.deepEqual([chat.error.message, chat.retry, chat.action, chat.lastEnd.outcome], ["No.", null, null, "failed"]);
  chat.apply("status", { status: "idle", turn: null });
  assert.equal(chat.error, null);
  chat.apply("chat", { title: "Rain" });
  assert.equal(chat.title, "Rain");
  chat.apply("unknown", {});
  chat.apply("part", { attempt: "a2", parts: [{ type: "text_delta", id: "1", delta: "x" }, { type: "novel" }] });
  chat.apply("reset", { attempt: "a2" });
  assert.equal(chat.live, null);
});

test("a snapshot taken in the middle of a reply goes on with the parts that follow", () => {
  const [chat, thread] = open([], { status: "running", live: { attempt: "a1", blocks: [{ type: "text", text: "It " }] } });
  chat.apply("part", { attempt: "a1", parts: [{ type: "text_delta", id: "7", delta: "rains." }] });
  assert.equal(copyText(thread.build(chat)[0]), "It rains.");
  const other = new ChatState("chat_1");
  other.apply("snapshot", structuredClone(chat.toSnapshot()));
  assert.equal(copyText(new Thread().build(other)[0]), "It rains.");
});

test("what happened to a call is a value, whatever the sentence beside it says", () => {
  for (const outcome of ["ran", "failed", "not_run", "unknown"]) {
    assert.equal(outcomeOf({ type: "tool_result", outcome, is_error: outcome !== "ran", output: "Not run: the dog is asleep" }), outcome);
  }
  assert.equal(outcomeOf({ type: "tool_result", output: "Outcome unknown: this call was started." }), "ran");
  assert.equal(outcomeOf({ type: "tool_result", is_error: true, output: "Outcome unknown: this call was started." }), "failed");
});

test("a message of the user has one key, on its way and stored", () => {
  const entry = { key: "k1", chat: "chat_1", text: "Rain?", body: { text: "Rain?" }, at: 1, state: "sending" };
  const [chat, thread] = open([]);
  const pending = makePendingItem(entry);
  chat.keys.set("m1", entry.key); // the response, or the feed, has named the message
  chat.apply("message", { message: message("m1", "user", "Rain?"), attempt: null });
  const [stored] = thread.build(chat);
  assert.deepEqual([stored.key, stored.kind, stored.pending], [pending.key, pending.kind, undefined]);
  assert.equal(pending.pending, entry);
});

test("a server that is killed inside a code block leaves one document with one code block", () => {
  const whole = "Look:\n\n```python\ndef rain():\n    return 'Bergen'\n```\n\nDone.";
  const kinds = (text, isOpen) => new MarkdownDocument().update(text, isOpen).blocks.map(({ token }) => token.type);
  for (let at = 1; at < whole.length; at += 1) {
    const [chat, thread] = open([message("m1", "user", "Code.")], { status: "running" });
    const document = new MarkdownDocument();
    const draw = () => {
      const [block, ...others] = thread.build(chat).at(-1)?.blocks ?? [];
      assert.equal(others.length, 0);
      document.update(block?.text ?? "", Boolean(block?.open));
      return block;
    };
    chat.apply("attempt", { attempt: "a1" });
    chat.apply("part", { attempt: "a1", parts: [{ type: "text_start", id: "t" }, { type: "text_delta", id: "t", delta: whole.slice(0, at) }] });
    const before = draw();
    // What another worker stores of the dead one's journal, and how the feed goes on.
    chat.apply("message", { message: message("m2", "assistant", whole.slice(0, at), { parent_id: "m1", partial: true, reason: "crashed" }), attempt: "a1" });
    draw();
    chat.apply("attempt", { attempt: "a2" });
    draw();
    chat.apply("part", { attempt: "a2", parts: [{ type: "text_start", id: "t" }, { type: "text_delta", id: "t", delta: whole.slice(at) }] });
    draw();
    chat.apply("message", { message: message("m3", "assistant", whole.slice(at), { parent_id: "m2", continues: "m2" }), attempt: "a2" });
    const after = draw();
    assert.equal(after.key, before.key);
    assert.equal(after.text, whole);
    assert.deepEqual(after.marks, [{ at, reason: "crashed" }]);
    assert.deepEqual(document.blocks.map(({ token }) => token.type), kinds(whole, false));
    assert.equal(document.blocks.filter(({ token }) => token.type === "code").length, 1);
  }
});
