// The npm package openai: create, stream, resume, cancel, tools, completions. `node openai.mjs URL RELEASE`
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const read = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};
const textOf = (events) =>
  events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");

const made = await client.responses.create({ model: "compat", input: "Hello" });
assert.equal(made.output_text, "You said: Hello");
const live = await read(await client.responses.create({ input: "One two", stream: true, background: true }));
assert.equal(textOf(live), "You said: One two");
const id = live[0].response.id;
for (let number = -1; number < live.length; number += 1) {
  const rest = await read(await client.responses.retrieve(id, { stream: true, starting_after: number }));
  assert.deepEqual(rest, live.slice(number + 1));
}
const runner = client.responses.stream({ model: "compat", input: "Fresh" });
assert.equal((await runner.finalResponse()).output_text, "You said: Fresh");

const running = await client.responses.create({ input: "hold", background: true });
const seen = [];
for await (const event of await client.responses.retrieve(running.id, { stream: true })) {
  seen.push(event);
  if (textOf(seen).endsWith("word9")) await client.responses.cancel(running.id);
}
assert.equal(seen.at(-1).response.status, "cancelled");
assert.equal(seen.at(-1).response.output_text ?? textOf(seen), textOf(seen));

const tools = [{ type: "function", name: "weather", parameters: { type: "object" }, strict: false }];
const first = await client.responses.create({ input: "Use the tool", tools });
const output = { type: "function_call_output", call_id: first.output[0].call_id, output: "rain" };
const second = await client.responses.create({ input: [output], previous_response_id: first.id, tools });
assert.equal(second.output_text, "The tool says: rain.");

const conversation = await client.conversations.create({ metadata: { topic: "x" } });
await client.responses.create({ input: "First", conversation: conversation.id });
assert.equal((await client.conversations.items.list(conversation.id)).data.length, 2);
await assert.rejects(client.responses.retrieve("resp_x"), OpenAI.NotFoundError);

const messages = [{ role: "user", content: "Hi" }];
const completion = await client.chat.completions.create({ model: "compat", messages });
assert.equal(completion.choices[0].message.content, "You said: Hi");
const chunks = await read(await client.chat.completions.create({ model: "compat", messages, stream: true }));
assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), "You said: Hi");
console.log("ok");
