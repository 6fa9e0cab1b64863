// The AI SDK's own provider of OpenAI, as it comes: `createOpenAI` with another address. It sends everything that the
// assistant has said as `item_reference`, so a conversation of several turns shows whether these are found again.
// `node ai_sdk_openai.mjs URL RELEASE`.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [, , url] = process.argv;
const requests = [];
const openai = createOpenAI({
  baseURL: `${url}/v1`,
  apiKey: "none",
  fetch: (input, init) => {
    requests.push(JSON.parse(init.body));
    return fetch(input, init);
  },
});
const model = openai("compat");
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `snow in ${city}`,
});
const stopWhen = stepCountIs(5);

const messages = [{ role: "user", content: "My name is Ada" }];
const first = await generateText({ model, messages });
assert.equal(first.text, "You said: My name is Ada");
messages.push(...first.responseMessages, { role: "user", content: "Use the tool" });

const second = streamText({ model, messages, tools: { weather }, stopWhen });
let streamed = "";
for await (const piece of second.textStream) streamed += piece;
assert.equal(streamed, "The tool says: snow in Oslo.");
messages.push(...(await second.responseMessages), { role: "user", content: "Weather here?" });

const third = await generateText({ model, messages });
assert.equal(third.text, "The tool says: rain in Oslo.");
messages.push(...third.responseMessages, { role: "user", content: "recite" });

const last = await generateText({ model, messages });
assert.ok(requests.at(-1).input.filter((item) => item.type === "item_reference").length >= 4, "nothing was referred to");
assert.deepEqual(last.text.split("\n"), [
  "user: My name is Ada",
  "assistant: You said: My name is Ada",
  "user: Use the tool",
  'assistant: called weather({"city":"Oslo"})',
  "tool: snow in Oslo",
  "assistant: The tool says: snow in Oslo.",
  "user: Weather here?",
  'assistant: called weather_here({"city":"Oslo"})',
  "tool: rain in Oslo",
  "assistant: The tool says: rain in Oslo.",
  "user: recite",
]);

const warned = [...first.warnings, ...third.warnings, ...last.warnings];
assert.deepEqual(warned, []);
const bad = generateText({ model: openai("none-such"), prompt: "Hi", maxRetries: 0 });
await assert.rejects(bad, (error) => error.statusCode === 404 && error.data.error.code === "model_not_found");
console.log("ok");
