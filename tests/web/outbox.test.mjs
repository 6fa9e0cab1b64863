// The words of the user: an entry leaves the outbox only when the server has it, or by the user's hand.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Api, isMissing, newKey, Problem } from "../../src/indelible/server/web/core/api.js";
import { Drafts } from "../../src/indelible/server/web/core/drafts.js";
import { Outbox } from "../../src/indelible/server/web/core/outbox.js";
import { Locks, MemoryStorage, settle, Timers } from "./stand_ins.mjs";

/** A server that stores a message once per key. `plan` says what happens to each response: "ok", "lost", or a status. */
class FakeServer {
  stored = new Map();
  requests = [];
  plan = [];
  fetch = async (url, { method, headers, body }) => {
    const path = new URL(url).pathname.replace("/api/v1/", "");
    this.requests.push([method, path, headers["Idempotency-Key"], JSON.parse(body)]);
    const fate = this.plan.shift() ?? "ok";
    if (fate === "away") throw new TypeError("Failed to fetch");
    if (typeof fate === "number") return new Response(JSON.stringify({ detail: `Refused with ${fate}.`, kind: "invalid" }), { status: fate });
    this.stored.set(headers["Idempotency-Key"], path);
    if (fate === "lost") throw new TypeError("Failed to fetch");
    return Response.json(path === "chats" ? { id: "chat_9", message: "m1" } : { message: "m2", queued: null }, { status: 201 });
  };
}

function open({ plan = [], storage = new MemoryStorage(), locks, user = "", isConfirmed = true } = {}) {
  const server = Object.assign(new FakeServer(), { plan });
  const timers = new Timers();
  const delivered = [];
  const api = new Api("http://host/api/v1/", server.fetch);
  const make = () => {
    const outbox = new Outbox({ api, storage, user, locks, setTimer: timers.set, onDelivered: (entry, response) => delivered.push([entry.text, response]) });
    return Object.assign(outbox, { isConfirmed });
  };
  return { server, timers, storage, delivered, outbox: make(), make };
}

test("a message whose response is lost is sent again under its key and stored once", async () => {
  const { server, timers, outbox, delivered } = open({ plan: ["lost"] });
  outbox.add("chat_1", "Hello", { text: "Hello" });
  await settle();
  assert.equal(outbox.list("chat_1")[0].state, "waiting");
  timers.ring();
  await settle();
  assert.deepEqual(outbox.list("chat_1"), []);
  assert.equal(server.requests.length, 2);
  assert.equal(server.stored.size, 1);
  assert.deepEqual(delivered.map(([text]) => text), ["Hello"]);
});

test("a message that waits is sent under its key at once when the user asks for it", async () => {
  const { server, outbox } = open({ plan: ["lost"] });
  const { key } = outbox.add("chat_1", "Hello", { text: "Hello" });
  await settle();
  outbox.retry(key);
  await settle();
  assert.deepEqual(server.requests.map(([, , used]) => used), [key, key]);
  assert.deepEqual(outbox.list("chat_1"), []);
});

test("a message that the user takes back while it is refused does not come back", async () => {
  const { outbox, make } = open({ plan: [413] });
  const { key } = outbox.add("chat_1", "Hello", { text: "Hello" });
  outbox.remove(key);
  await settle();
  assert.deepEqual(make().list("chat_1"), []);
});

test("a refusal is shown even if another tab has changed the outbox meanwhile", async () => {
  const { outbox } = open({ plan: [413] });
  outbox.add("chat_1", "Hello", { text: "Hello" });
  outbox.load();
  await settle();
  assert.equal(outbox.list("chat_1")[0].state, "refused");
});

test("after a reload everything that waited is sent in order, to a chat that is created once", async () => {
  const before = open({ plan: ["away", "away"] });
  before.outbox.add("new:1", "First", { text: "First", model: "demo", create: { system: "Be brief." } });
  before.outbox.add("new:1", "Second", { text: "Second" });
  await settle();
  const after = open({ storage: before.storage, locks: new Locks() });
  await after.outbox.flush();
  assert.deepEqual(after.server.requests.map(([, path, , body]) => [path, body]), [
    ["chats", { message: "First", model: "demo", system: "Be brief." }],
    ["chats/chat_9/messages", { text: "Second" }],
  ]);
  assert.equal(after.outbox.resolve("new:1"), "chat_9");
  assert.equal(after.storage.length, 1, "only the name of the created chat is left");
});

test("a message at which the server has failed is sent again under its key: it may be stored already", async () => {
  const { server, outbox } = open({ plan: [500] });
  outbox.add("chat_1", "Hello", { text: "Hello" });
  await settle();
  assert.equal(outbox.list("chat_1")[0].state, "refused");
  outbox.retry(outbox.list("chat_1")[0].key);
  await settle();
  assert.deepEqual(outbox.list("chat_1"), []);
  assert.equal(server.requests.length, 2);
  assert.equal(server.requests[0][2], server.requests[1][2]);
});

test("a refused message stays, holds up its chat only, and can be sent again or taken out", async () => {
  const { server, outbox } = open({ plan: [422] });
  outbox.add("chat_1", "Bad", { text: "Bad" });
  outbox.add("chat_1", "Later", { text: "Later" });
  outbox.add("chat_2", "Other", { text: "Other" });
  await settle();
  assert.deepEqual(outbox.list("chat_1").map(({ text, state, error }) => [text, state, error]), [["Bad", "refused", "Refused with 422."], ["Later", "sending", undefined]]);
  assert.deepEqual(outbox.list("chat_2"), []);
  outbox.retry(outbox.list("chat_1")[0].key);
  await settle();
  assert.deepEqual(outbox.list("chat_1"), []);
  assert.notEqual(server.requests[0][2], server.requests.at(-1)[2]);
});

test("a refused message that is sent again goes before what was written after it", async () => {
  const { server, outbox } = open({ plan: [422] });
  for (const text of ["First", "Second", "Third"]) outbox.add("chat_1", text, { text });
  await settle();
  outbox.retry(outbox.list("chat_1")[0].key);
  await settle();
  assert.deepEqual(server.requests.map(([, , , { text }]) => text), ["First", "First", "Second", "Third"]);
  assert.equal(server.stored.size, 3);
});

test("being logged out or too fast delays a message and never refuses it", async () => {
  for (const status of [401, 429, 503]) {
    const { outbox } = open({ plan: [status] });
    outbox.add("chat_1", "Hello", { text: "Hello" });
    await settle();
    assert.equal(outbox.list("chat_1")[0].state, "waiting");
  }
});

test("a storage without room loses nothing while the tab lives", async () => {
  const storage = new MemoryStorage();
  storage.setItem = () => { throw new DOMException("full", "QuotaExceededError"); };
  const { outbox, timers, server } = open({ plan: ["away"], storage });
  outbox.add("chat_1", "Hello", { text: "Hello" });
  await settle();
  timers.ring();
  await settle();
  assert.equal(server.stored.size, 1);
});

test("a chat whose id the storage has no room for is created once, and later messages go to it", async () => {
  const storage = new MemoryStorage();
  const setItem = storage.setItem.bind(storage);
  storage.setItem = (name, value) => {
    if (name.startsWith("indelible:made:")) throw new DOMException("full", "QuotaExceededError");
    setItem(name, value);
  };
  const { server, outbox, delivered } = open({ storage });
  outbox.add("new:1", "First", { text: "First" });
  outbox.add("new:1", "Second", { text: "Second" });
  await settle();
  outbox.add("new:1", "Third", { text: "Third" });
  await settle();
  assert.deepEqual(server.requests.map(([, path]) => path), ["chats", "chats/chat_9/messages", "chats/chat_9/messages"]);
  assert.deepEqual(delivered.map(([text]) => text), ["First", "Second", "Third"]);
  assert.deepEqual([outbox.resolve("new:1"), outbox.list("new:1"), storage.length], ["chat_9", [], 0]);
});

test("a draft is in the browser with every key and on the server a moment later", async () => {
  const saved = [];
  const timers = new Timers();
  const drafts = new Drafts({ storage: new MemoryStorage(), setTimer: timers.set, clearTimer: timers.clear, save: async (chat, text) => saved.push([chat, text]), load: async () => ({ text: "from the server" }) });
  assert.equal(await drafts.fetch("chat_1"), "from the server");
  for (const text of ["H", "He", "Hey"]) drafts.set("chat_1", text);
  assert.equal(drafts.get("chat_1"), "Hey");
  assert.equal(await drafts.fetch("chat_1"), "Hey");
  assert.deepEqual(saved, []);
  timers.ring();
  drafts.set("chat_1", "Hey!");
  drafts.flushAll();
  drafts.clear("chat_1");
  assert.deepEqual(saved, [["chat_1", "Hey"], ["chat_1", "Hey!"], ["chat_1", ""]]);
  assert.equal(drafts.get("chat_1"), "");
});

/** Drafts of a server that has one in every chat. `refusals` is how many of the next saves fail. */
function openDrafts({ refusals = 0, user = "ada" } = {}) {
  const timers = new Timers();
  const saved = [];
  const save = async (chat, text) => {
    saved.push([chat, text]);
    if (saved.length <= refusals) throw new TypeError("Failed to fetch");
  };
  const load = async () => ({ text: "from the server" });
  return { timers, saved, drafts: new Drafts({ storage: new MemoryStorage(), user, setTimer: timers.set, clearTimer: timers.clear, save, load }) };
}

test("a draft that came from the server is cleared there when it is sent unchanged", async () => {
  const { drafts, saved, timers } = openDrafts();
  await drafts.fetch("chat_1");
  drafts.clear("chat_1");
  await settle();
  assert.deepEqual(saved, [["chat_1", ""]]);
  drafts.clear("chat_1");
  drafts.clear("chat_2");
  assert.deepEqual([saved.length, timers.waiting.size], [1, 0], "where the server has no text there is nothing to clear");
});

test("the clearing of a draft that fails is repeated until the server has it", async () => {
  const { drafts, saved, timers } = openDrafts({ refusals: 2 });
  await drafts.fetch("chat_1");
  drafts.clear("chat_1");
  for (const expected of [1, 2, 3, 3]) {
    await settle();
    assert.deepEqual(saved, Array(expected).fill(["chat_1", ""]));
    timers.ring();
  }
});

test("what is typed after a failed clearing is saved in its place", async () => {
  const { drafts, saved, timers } = openDrafts({ refusals: 1 });
  await drafts.fetch("chat_1");
  drafts.clear("chat_1");
  await settle();
  assert.equal(timers.waiting.size, 1);
  drafts.set("chat_1", "Next");
  timers.ring();
  await settle();
  assert.deepEqual([saved, timers.waiting.size], [[["chat_1", ""], ["chat_1", "Next"]], 0]);
});

test("what the server had for one user is not cleared for the next", async () => {
  const { drafts, saved } = openDrafts();
  await drafts.fetch("chat_1");
  drafts.setUser("grace");
  drafts.clear("chat_1");
  await settle();
  assert.deepEqual(saved, []);
});

test("a clearing that failed for one user is not repeated for the next", async () => {
  const { drafts, saved, timers } = openDrafts({ refusals: 1 });
  await drafts.fetch("chat_1");
  drafts.clear("chat_1");
  await settle();
  drafts.setUser("grace");
  timers.ring();
  await settle();
  assert.deepEqual(saved, [["chat_1", ""]]);
});

test("a problem says what happened, and a missing route is told from a missing server", async () => {
  const { server } = open({ plan: [404, 401] });
  let logins = 0;
  const api = Object.assign(new Api("http://host/base/api/v1/", server.fetch), { onUnauthorized: () => (logins += 1) });
  const error = await api.post("x").catch((caught) => caught);
  assert.ok(error instanceof Problem && isMissing(error));
  assert.equal(error.message, "Refused with 404.");
  await assert.rejects(api.post("x"));
  assert.equal(logins, 1);
  assert.equal(api.url("chats"), "http://host/base/api/v1/chats");
});

test("a refusal that is older than a login does not end the session", async () => {
  let ended = 0;
  let answer;
  const api = Object.assign(new Api("http://host/api/v1/", () => new Promise((resolve) => (answer = resolve))), { onUnauthorized: () => (ended += 1) });
  for (const loginsMeanwhile of [1, 0]) {
    const asked = assert.rejects(api.get("session"));
    api.logins += loginsMeanwhile;
    answer(new Response("{}", { status: 401 }));
    await asked;
    assert.equal(ended, 1 - loginsMeanwhile);
  }
});

test("the server is away when a request or a proxy says so, and back with the next answer", async () => {
  const { server } = open({ plan: ["away", "away", 404, 502, "ok"] });
  const seen = [];
  const api = Object.assign(new Api("http://host/api/v1/", server.fetch), { onReach: (isThere) => seen.push(isThere) });
  for (let at = 0; at < 5; at += 1) await api.post("x").catch(() => {});
  assert.deepEqual(seen, [false, true, false, true]);
});

test("a browser without randomUUID (plain http) has keys of its own, no two alike", async (t) => {
  Object.defineProperty(crypto, "randomUUID", { value: undefined, configurable: true });
  t.after(() => Reflect.deleteProperty(crypto, "randomUUID"));
  const { server, outbox } = open();
  outbox.add("chat_1", "Hello", { text: "Hello" });
  await settle();
  const keys = [server.requests[0][2], ...Array.from({ length: 100 }, () => newKey())];
  for (const key of keys) assert.match(key, /^[0-9a-f]{32}$/);
  assert.equal(new Set(keys).size, keys.length);
});

test("what one user has left is never sent in the name of another", async () => {
  const { server, timers, outbox, make } = open({ plan: ["away"] });
  outbox.setUser("ada");
  outbox.add("new:1", "Mine", { text: "Mine" });
  await settle();
  const later = make();
  later.setUser("grace");
  await settle();
  assert.deepEqual([server.requests.length, later.list("new:1").length], [1, 0]);
  timers.waiting.clear();
  later.setUser("ada");
  await settle();
  assert.equal(server.stored.size, 1);
});

test("after a logout nothing is sent until the server has said again who is logged in", async () => {
  const { server, timers, outbox, make } = open({ plan: [401] });
  outbox.setUser("ada");
  outbox.add("chat_1", "Mine", { text: "Mine" });
  await settle();
  timers.ring();
  outbox.add("chat_2", "Mine, too", { text: "Mine, too" });
  await settle();
  assert.deepEqual([server.requests.length, outbox.own.length], [1, 2]);
  outbox.confirm = async () => outbox.setUser("grace");
  timers.ring();
  await settle();
  assert.deepEqual([server.requests.length, outbox.own.length], [1, 0], "nothing of it is hers");
  make().setUser("ada");
  await settle();
  assert.deepEqual([...server.stored.values()], ["chats/chat_1/messages", "chats/chat_2/messages"]);
});

test("nothing is sent before the server has said who is logged in", async () => {
  const { server, timers, outbox, make } = open({ user: "ada", isConfirmed: false });
  outbox.add("new:1", "Mine", { text: "Mine" });
  await settle();
  await outbox.flush();
  assert.equal(server.requests.length, 0);
  assert.deepEqual(outbox.list("new:1").map(({ state, error }) => [state, error.slice(0, 25)]), [["waiting", "the server is unreachable"]]);
  outbox.confirm = async () => outbox.setUser("grace"); // another tab has logged her in
  timers.ring();
  await settle();
  assert.deepEqual([server.requests.length, outbox.list("new:1").length], [0, 0]);
  const later = make();
  later.setUser("ada");
  await settle();
  assert.equal(server.stored.size, 1);
});

test("what a first visitor sent to a server that is away survives the tab, and is the first user's", async () => {
  const { server, storage, outbox, make } = open({ user: null, isConfirmed: false });
  outbox.add("new:1", "First", { text: "First" });
  await settle();
  assert.equal(make().list("new:1").length, 1);
  make().setUser("ada");
  await settle();
  assert.deepEqual([server.stored.size, make().list("new:1").length], [1, 0]);
  make().add("new:2", "After a logout", { text: "After a logout" });
  assert.equal(make().list("new:2").length, 0, "in a browser with users it is in memory alone");
  make().setUser("grace");
  await settle();
  assert.equal(server.stored.size, 1);
  assert.ok(storage.length);
});

test("what is typed and sent before the user is known is held, and is theirs", async () => {
  const storage = new MemoryStorage();
  open({ storage }).outbox.setUser("ida"); // a user was here before
  const { length } = storage;
  const { server, outbox } = open({ storage, user: null, isConfirmed: false });
  outbox.add("new:1", "Early", { text: "Early" });
  const drafts = new Drafts({ storage, user: null });
  drafts.set("new", "Typed");
  await settle();
  assert.deepEqual([server.requests.length, storage.length - length, outbox.list("new:1").length, drafts.get("new")], [0, 0, 1, "Typed"]);
  outbox.setUser("ada");
  drafts.setUser("ada");
  await settle();
  assert.deepEqual([server.stored.size, drafts.get("new")], [1, "Typed"]);
  assert.deepEqual(["ada", "grace"].map((user) => new Drafts({ storage, user }).get("new")), ["Typed", ""]);
});
