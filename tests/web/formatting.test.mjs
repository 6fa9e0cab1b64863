// Numbers and times as the page writes them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { cost, dayGroup, duration, elapsed, groupChats, shorten, size, tokens } from "../../src/indelible/server/web/core/formatting.js";

test("durations, sizes, tokens and costs are short", () => {
  assert.deepEqual([20, 1240, 4000, 12_400, 59_700, 61_000, 119_800, 3_700_000].map(duration), ["0.1 s", "1.2 s", "4 s", "12 s", "1 min 0 s", "1 min 1 s", "2 min 0 s", "1 h 1 min"]);
  assert.deepEqual([500, 1500, 2_500_000].map(size), ["500 B", "2 kB", "2.5 MB"]);
  assert.deepEqual([1, 312, 12_345].map(tokens), ["1 token", "312 tokens", "12.3k tokens"]);
  assert.deepEqual([1.5, 0.002, 0.0001].map(cost), ["$1.50", "$0.002", "< $0.001"]);
  assert.equal(elapsed("2026-01-01T12:00:00Z", "2026-01-01T12:00:04Z"), 4000);
  assert.equal(elapsed(null, "2026-01-01T12:00:04Z"), null);
  assert.equal(shorten("a  b\nc", 3), "a b…");
});

test("chats are grouped by day, pinned first", () => {
  const now = new Date(2026, 4, 20, 12);
  const at = (days) => new Date(2026, 4, 20 - days, 9).toISOString();
  assert.deepEqual([0, 1, 3, 20, 80].map((days) => dayGroup(at(days), now)), ["Today", "Yesterday", "Previous 7 days", "Previous 30 days", "March 2026"]);
  const groups = groupChats([{ pinned: true, updated_at: at(50) }, { pinned: false, updated_at: at(0) }, { pinned: false, updated_at: at(0) }], now);
  assert.deepEqual(groups.map(({ name, chats }) => [name, chats.length]), [["Pinned", 1], ["Today", 2]]);
});
