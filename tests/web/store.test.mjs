// The state of the page: changes are drawn together, and growth alone draws only the conversation.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Store } from "../../src/indelible/server/web/core/store.js";

function open() {
  const frames = [];
  const drawn = [];
  const store = new Store({ draft: "", problem: null }, (draw) => frames.push(draw));
  store.onDraw = () => drawn.push("all");
  const nextFrame = () => frames.splice(0).forEach((draw) => draw());
  return { store, drawn, nextFrame };
}

test("many changes are one drawing", () => {
  const { store, drawn, nextFrame } = open();
  store.set({ draft: "H" });
  store.set({ draft: "Hi" });
  store.grown();
  nextFrame();
  nextFrame();
  assert.deepEqual([store.state, drawn], [{ draft: "Hi", problem: null }, ["all"]]);
});

test("what only grew draws the conversation alone, until something else changes", () => {
  const { store, drawn, nextFrame } = open();
  store.grown();
  nextFrame(); // nobody draws the conversation alone yet
  store.onGrow = () => drawn.push("conversation");
  store.grown();
  nextFrame();
  store.grown();
  store.changed();
  nextFrame();
  store.grown();
  nextFrame();
  assert.deepEqual(drawn, ["all", "conversation", "all", "conversation"]);
});

test("a change while drawing is drawn in the next frame", () => {
  const { store, drawn, nextFrame } = open();
  store.onDraw = () => {
    drawn.push(store.state.draft);
    if (!store.state.draft) store.set({ draft: "later" });
  };
  store.changed();
  nextFrame();
  nextFrame();
  assert.deepEqual(drawn, ["", "later"]);
});
