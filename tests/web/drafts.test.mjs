// The drafts of many tabs: each has its own, a closed tab leaves its words to the next, and nobody loses any.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Drafts } from "../../src/indelible/server/web/core/drafts.js";
import { Tab } from "../../src/indelible/server/web/core/tab.js";
import { Locks, makeChannels, MemoryStorage, settle, Timers } from "./stand_ins.mjs";

/** A browser with tabs, and a server that keeps one draft per chat. */
class Browser {
  storage = new MemoryStorage();
  open = new Set();
  timers = new Timers();
  server = new Map();
  asked = 0;
  away = 0;
  tab(name, user = "ada") {
    this.open.add(name);
    const save = async (chat, text) => {
      if (this.away-- > 0) throw new TypeError("Failed to fetch");
      this.server.set(chat, text);
    };
    const load = async (chat) => ((this.asked += 1), { text: this.server.get(chat) ?? "" });
    return new Drafts({ storage: this.storage, user, tab: { name, findOpen: async () => new Set(this.open) }, save, load, setTimer: this.timers.set, clearTimer: this.timers.clear });
  }
}

test("two tabs with the same chat keep their own words, over a reload too", async () => {
  const browser = new Browser();
  const [a, b] = [browser.tab("a"), browser.tab("b")];
  a.set("new", "Hello");
  assert.equal(await b.fetch("new"), "", "an open tab shows it");
  b.set("new", "Bye");
  browser.timers.ring();
  assert.equal(browser.server.get("new"), "Bye");
  assert.deepEqual([browser.tab("a").get("new"), browser.tab("b").get("new")], ["Hello", "Bye"]);
  b.clear("new");
  assert.deepEqual([a.get("new"), b.get("new"), browser.server.get("new")], ["Hello", "", "Hello"]);
  assert.equal(await b.fetch("new"), "", "nor from the server: it is what the other tab shows");
  assert.equal(browser.asked, 0);
});

test("the newest words of a closed tab are taken over, once, and older ones after them", async (t) => {
  t.mock.timers.enable({ apis: ["Date"], now: 1 });
  const browser = new Browser();
  for (const name of ["a", "b", "c"]) {
    browser.tab(name).set("chat_1", `From ${name}`);
    t.mock.timers.tick(1);
  }
  browser.open.delete("a");
  browser.open.delete("b");
  const [d, e, f] = [browser.tab("d"), browser.tab("e"), browser.tab("f")];
  assert.equal(await d.fetch("chat_1"), "From b");
  assert.deepEqual([d.get("chat_1"), await e.fetch("chat_1"), await f.fetch("chat_1")], ["From b", "From a", ""]);
  d.clear("chat_1");
  assert.equal(await d.fetch("chat_1"), "");
  assert.deepEqual([browser.tab("c").get("chat_1"), e.get("chat_1")], ["From c", "From a"]);
});

test("what is typed while the closed tabs are looked for stays", async (t) => {
  t.mock.timers.enable({ apis: ["Date"], now: 1 });
  const browser = new Browser();
  browser.tab("a").set("chat_1", "Old");
  t.mock.timers.tick(1);
  browser.open.delete("a");
  const b = browser.tab("b");
  const found = b.fetch("chat_1");
  b.set("chat_1", "New");
  assert.equal(await found, "New");
  browser.open.delete("b");
  assert.deepEqual([await browser.tab("c").fetch("chat_1"), await browser.tab("d").fetch("chat_1")], ["New", "Old"]);
});

test("another user of the browser takes nothing over", async () => {
  const browser = new Browser();
  browser.tab("a", "ada").set("new", "Mine");
  browser.open.delete("a");
  assert.equal(await browser.tab("b", "grace").fetch("new"), "");
  assert.equal(await browser.tab("c", "ada").fetch("new"), "Mine");
});

test("a draft of an earlier version of the page is found", async () => {
  const browser = new Browser();
  browser.storage.setItem("indelible:draft:ada:chat_1", '"Hello"');
  assert.equal(await browser.tab("a").fetch("chat_1"), '"Hello"');
  assert.equal(await browser.tab("b").fetch("chat_1"), "");
});

test("what was sent is replaced on the server by what another tab shows, even if that fails at first", async () => {
  const browser = new Browser();
  const [a, b] = [browser.tab("a"), browser.tab("b")];
  a.set("chat_1", "Hello");
  browser.timers.ring();
  b.set("chat_1", "Bye");
  browser.timers.ring();
  browser.away = 1;
  b.clear("chat_1");
  await settle();
  assert.equal(browser.server.get("chat_1"), "Bye");
  browser.timers.ring();
  await settle();
  assert.equal(browser.server.get("chat_1"), "Hello");
  a.clear("chat_1");
  await settle();
  assert.deepEqual([browser.server.get("chat_1"), browser.timers.waiting.size], ["", 0]);
});

test("a tab keeps its name over a reload, and a duplicated tab gets another", async () => {
  const locks = new Locks();
  const storage = new MemoryStorage();
  const tab = new Tab({ storage, locks });
  const copied = new Tab({ storage: new MemoryStorage(), locks }); // of an open tab: there is no name in its storage
  assert.equal(storage.length, 0);
  assert.deepEqual(await tab.findOpen([]), new Set([tab.name, copied.name]));
  tab.noteLeft();
  const again = new Tab({ storage, locks }); // its lock is released a moment later
  assert.deepEqual([again.name, storage.length], [tab.name, 0]);
  tab.noteLeft();
  tab.noteShown(); // from the browser's cache
  assert.equal(storage.length, 0);
});

test("without locks, tabs ask each other, and who does not answer is closed", async () => {
  const openChannel = makeChannels();
  const timers = new Timers();
  const storage = new MemoryStorage();
  const openTab = () => {
    const channel = openChannel("tabs");
    const tab = new Tab({ storage: new MemoryStorage(), channel, setTimer: timers.set, clearTimer: timers.clear });
    return { channel, drafts: new Drafts({ storage, user: "ada", tab, setTimer: timers.set, clearTimer: timers.clear }) };
  };
  const [a, b, c] = [openTab(), openTab(), openTab()];
  a.drafts.set("new", "From a");
  assert.equal(await b.drafts.fetch("new"), "", "a answers, so nobody waits");
  assert.deepEqual([a.drafts.get("new"), b.drafts.get("new"), timers.waiting.size], ["From a", "", 0]);
  a.channel.close();
  const found = b.drafts.fetch("new");
  await settle();
  assert.equal(timers.waiting.size, 1);
  timers.ring();
  assert.equal(await found, "From a");
  assert.equal(await c.drafts.fetch("new"), "", "b shows it now");
  assert.deepEqual([b.drafts.get("new"), timers.waiting.size], ["From a", 0]);
});
