// Several tabs, one feed: every tab gets every event once, whichever tab closes or gives way.

import assert from "node:assert/strict";
import { test } from "node:test";
import { FeedHub, SLOTS } from "../../src/indelible/server/web/core/feedhub.js";
import { Stream } from "../../src/indelible/server/web/core/stream.js";
import { Locks, makeChannels, settle, Source, Timers } from "./stand_ins.mjs";

function makeBrowser() {
  const locks = new Locks();
  const openChannel = makeChannels();
  const sources = [];
  const openTab = (chatId = "chat_1", { hidden = false } = {}) => {
    const tab = { seen: [], states: [], hidden };
    tab.hub = new FeedHub({
      chatId, locks, openChannel, isHidden: () => tab.hidden, check: async () => true,
      open: (cursor) => { const source = Object.assign(new Source(cursor), { chatId }); sources.push(source); return source; },
      onEvent: (kind, data) => tab.seen.push(kind === "snapshot" ? `state:${data.at}` : data.at),
      onState: (state, retryAt) => (tab.states.push(state), Object.assign(tab, { state, retryAt })),
      readState: () => ({ at: tab.seen.at(-1) }),
    });
    return tab;
  };
  return { openTab, sources, connected: () => sources.filter(({ closed }) => !closed) };
}

test("tabs on one chat share one connection, and a late one starts with the leader's state", async () => {
  const { openTab, connected } = makeBrowser();
  const first = openTab();
  await settle();
  connected()[0].send("snapshot", { at: 0 }, "c0");
  connected()[0].send("part", { at: 1 }, "c1");
  await settle();
  const second = openTab();
  await settle();
  connected()[0].send("part", { at: 2 }, "c2");
  await settle();
  assert.equal(connected().length, 1);
  assert.deepEqual(first.seen, ["state:0", 1, 2]);
  assert.deepEqual(second.seen, ["state:1", 2]);
  assert.equal(second.state, "shared");
  first.hub.close();
  await settle();
  assert.equal(connected()[0].cursor, "c2", "the next one reads on where it is");
  connected()[0].send("part", { at: 3 }, "c3");
  assert.deepEqual(second.seen, ["state:1", 2, 3]);
  second.hub.close();
});

test("at most a few feeds are connected, and a hidden tab gives way at once", async () => {
  const { openTab, connected } = makeBrowser();
  const tabs = Array.from({ length: SLOTS }, (_, at) => openTab(`chat_${at}`, { hidden: true }));
  await settle();
  for (const source of connected()) source.send("snapshot", { at: 0 }, `${source.chatId}:0`);
  assert.equal(connected().length, SLOTS);
  const visible = openTab("chat_visible");
  await settle();
  assert.equal(connected().length, SLOTS);
  const own = connected().find(({ chatId }) => chatId === "chat_visible");
  own.send("snapshot", { at: 5 }, "v");
  assert.deepEqual(visible.seen, ["state:5"]);
  visible.hub.close();
  await settle();
  const back = connected().find(({ cursor }) => cursor !== null);
  assert.ok(back, "the one that gave way reads on from its cursor");
  for (const { hub } of tabs) hub.close();
});

test("a tab that asks for a snapshot gets one through the leader", async () => {
  const { openTab, connected } = makeBrowser();
  const [first, second] = [openTab(), openTab()];
  await settle();
  connected()[0].send("snapshot", { at: 0 }, "c0");
  await settle();
  second.hub.resync();
  await settle();
  assert.equal(connected().at(-1).cursor, null);
  connected().at(-1).send("snapshot", { at: 7 }, "c7");
  await settle();
  assert.deepEqual([first.seen.at(-1), second.seen.at(-1)], ["state:7", "state:7"]);
  first.hub.close();
  second.hub.close();
});

test("a tab that shares a connection learns that it is lost, when it is tried again, and that it is back", async () => {
  const { openTab, connected } = makeBrowser();
  const [first, second] = [openTab(), openTab()];
  await settle();
  connected()[0].onopen();
  connected()[0].send("snapshot", { at: 0 }, "c0");
  await settle();
  assert.deepEqual([first.state, second.state], ["live", "shared"]);
  connected()[0].lose();
  await settle();
  assert.deepEqual([first.state, second.state], ["reconnecting", "reconnecting"]);
  assert.ok(first.retryAt);
  assert.equal(second.retryAt, first.retryAt);
  first.hub.hurry();
  await settle();
  connected()[0].onopen();
  await settle();
  assert.deepEqual([first.state, second.state], ["live", "shared"]);
  first.hub.close();
  second.hub.close();
});

test("a tab that joins while its leader reconnects shows that, whether the leader has a state or not", async () => {
  for (const hasState of [true, false]) {
    const { openTab, connected } = makeBrowser();
    const first = openTab();
    await settle();
    if (hasState) {
      connected()[0].send("snapshot", { at: 0 }, "c0");
      connected()[0].send("part", { at: 1 }, "c1");
    }
    connected()[0].lose();
    const second = openTab();
    await settle();
    assert.deepEqual(second.seen, hasState ? ["state:1"] : []);
    assert.equal(second.state, "reconnecting");
    assert.equal(second.retryAt, first.retryAt);
    first.hub.hurry();
    await settle();
    connected()[0].onopen();
    connected()[0].send("snapshot", { at: 2 }, "c2");
    await settle();
    assert.equal(second.state, "shared");
    assert.equal(second.seen.at(-1), "state:2");
    first.hub.close();
    second.hub.close();
  }
});

test("a tab that shares a connection is told its state when it changes, not with every event", async () => {
  const { openTab, connected } = makeBrowser();
  const [first, second] = [openTab(), openTab()];
  await settle();
  connected()[0].onopen();
  connected()[0].send("snapshot", { at: 0 }, "c0");
  for (const at of [1, 2, 3]) connected()[0].send("part", { at }, `c${at}`);
  await settle();
  assert.deepEqual(second.seen, ["state:0", 1, 2, 3]);
  assert.deepEqual(second.states, ["shared"]);
  first.hub.close();
  second.hub.close();
});

test("a lost connection is reopened at the cursor, later and later, until the chat is gone", async () => {
  const timers = new Timers();
  const sources = [];
  const states = [];
  const answers = [true, "away", false];
  const stream = new Stream({
    open: (cursor) => (sources.push(new Source(cursor)), sources.at(-1)), kinds: ["part"], onEvent: () => {}, onState: (state) => states.push(state),
    check: async () => { const answer = answers.shift(); if (answer === "away") throw new TypeError(); return answer; },
    setTimer: timers.set, clearTimer: timers.clear,
  });
  sources[0].onopen();
  sources[0].send("part", {}, "c5");
  sources[0].lose();
  timers.ring();
  await settle();
  assert.equal(sources[1].cursor, "c5");
  sources[1].lose();
  stream.hurry();
  await settle();
  assert.equal(sources.length, 2);
  timers.ring();
  await settle();
  assert.equal(sources.length, 2, "a chat that is gone is not asked for again");
  assert.deepEqual(states, ["live", "reconnecting", "reconnecting", "reconnecting"]);
  stream.close();
});
