import assert from "node:assert/strict";
import { test } from "node:test";
import { Api } from "../../src/indelible/server/web/core/api.js";

test("half a character of a cut paste does not keep a message from being sent", async () => {
  const api = new Api(new URL("http://localhost/api/v1/"));
  let sent = "";
  api.fetch = async (_, { body }) => {
    sent = body;
    return new Response("{}", { status: 202, headers: { "Content-Type": "application/json" } });
  };
  await api.request("POST", "chats", { body: { message: "a\ud83d", title: "\ud83d\ude00" } });
  assert.deepEqual(JSON.parse(sent), { message: "a\ufffd", title: "\ud83d\ude00" });
});
