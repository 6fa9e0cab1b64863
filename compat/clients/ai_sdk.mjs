// `Chat` and `DefaultChatTransport` of the npm packages @ai-sdk/react and ai, which is all of useChat but its hook: send,
// tools of the server and of the client, stop, resume, regenerate, a server that is away. Whatever happens, the text here is
// the stored text.
// `node ai_sdk.mjs URL RELEASE [-6]`: the last argument chooses version 6 of the packages.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";

const [, , url, release, version = ""] = process.argv;
const { Chat } = await import(`@ai-sdk/react${version}`);
const { DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls } = await import(`ai${version}`);

const STORY = Array.from({ length: 40 }, (_, number) => `word${number}`).join(" ");
const api = `${url}/ai-sdk/chat`;
const id = randomUUID();

const loadMessages = async () => (await fetch(`${api}/${id}/messages`)).json();
const textOf = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
const openChat = async (options = {}, onError = (error) => assert.fail(error)) =>
  new Chat({
    id,
    messages: await loadMessages(),
    transport: new DefaultChatTransport({ api, ...options }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
    onError,
  });
const waitUntil = (chat, isTrue) =>
  new Promise((resolve) => {
    const look = () => isTrue(chat) && resolve();
    chat["~registerMessagesCallback"](look); // as the hook does
    chat["~registerStatusCallback"](look);
    look();
  });
const waitForReply = (chat, question, text) =>
  waitUntil(chat, ({ messages }) => {
    const [asked, reply] = messages.slice(-2);
    return textOf(asked) === question && reply.role === "assistant" && textOf(reply).endsWith(text);
  });
const checkReply = async (chat, text) => {
  assert.equal(chat.status, "ready");
  assert.equal(textOf(chat.messages.at(-1)), text);
  assert.equal(textOf((await loadMessages()).at(-1)), text);
};

const chat = await openChat();
await chat.sendMessage({ text: "Hello" });
await checkReply(chat, "You said: Hello");

await chat.sendMessage({ text: "Weather here?" });
await checkReply(chat, "The tool says: rain in Oslo.");
assert.ok(chat.messages.at(-1).parts.some((part) => part.providerExecuted && part.state === "output-available"));

await chat.sendMessage({ text: "Use the tool" });
const call = chat.messages.at(-1).parts.find((part) => part.state === "input-available");
await chat.addToolOutput({ tool: "confirm", toolCallId: call.toolCallId, output: "yes" });
await waitForReply(chat, "Use the tool", "yes.");
await waitUntil(chat, ({ status }) => status === "ready");
await checkReply(chat, "The tool says: yes.");

const stopped = await openChat();
const sending = stopped.sendMessage({ text: "hold and stop" });
await waitForReply(stopped, "hold and stop", "word9");
await fetch(`${api}/${id}/stop`, { method: "POST" });
await sending;
await checkReply(stopped, textOf(stopped.messages.at(-1)));
assert.ok(STORY.startsWith(textOf(stopped.messages.at(-1))));

const first = await openChat();
const told = first.sendMessage({ text: "hold and resume" });
await waitForReply(first, "hold and resume", "word9");
const reloaded = await openChat();
const resumed = reloaded.resumeStream();
await waitForReply(reloaded, "hold and resume", "word9");
writeFileSync(release, "");
await Promise.all([told, resumed]);
await checkReply(first, STORY);
await checkReply(reloaded, STORY);
assert.equal(first.messages.at(-1).id, reloaded.messages.at(-1).id);

await reloaded.regenerate();
await checkReply(reloaded, STORY);
rmSync(release);

// Two messages while the server is away: they are on the screen, and both reach the model.
let isAway = true;
const cutFetch = (...given) => (isAway ? Promise.reject(new TypeError("fetch failed")) : fetch(...given));
const lonely = await openChat({ fetch: cutFetch }, () => {});
for (const text of ["Lost ", "and found"]) {
  await lonely.sendMessage({ text });
  assert.equal(lonely.status, "error");
}
isAway = false;
await lonely.regenerate();
await checkReply(lonely, "You said: Lost and found");
assert.deepEqual((await loadMessages()).map(textOf), lonely.messages.map(textOf));
assert.deepEqual((await loadMessages()).map((message) => message.id), lonely.messages.map((message) => message.id));

// The SDK's guide on persistence: only the last message is posted.
const prepareSendMessagesRequest = ({ id, messages, trigger, messageId }) => ({
  body: { id, message: messages.at(-1), trigger, messageId },
});
const brief = await openChat({ prepareSendMessagesRequest });
await brief.sendMessage({ text: "Briefly" });
await checkReply(brief, "You said: Briefly");
await brief.regenerate();
await checkReply(brief, "You said: Briefly");
console.log("ok");
