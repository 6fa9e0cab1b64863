// Streams of the SDKs from npm, and how each of them ended. `node streams.mjs URL MODEL BEGUN QUESTION COUNT THEN KIND…`
// reads COUNT replies to QUESTION with each kind of client, creates the file BEGUN as soon as all of them have some text,
// and prints one line of JSON per stream: {kind, text, raised, recovered}. A client raises, or says that the reply is
// complete. If THEN is `resume`, useChat loads its messages after that and resumes: `recovered` is the text on its screen.
import { randomUUID } from "node:crypto";
import { writeFileSync } from "node:fs";
import OpenAI from "openai";

const [, , url, model, begun, question, count, then, ...kinds] = process.argv;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 600_000 });
let waiting = Number(count) * kinds.length;

async function* completions() {
  const messages = [{ role: "user", content: question }];
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
    yield chunk.choices[0]?.delta.content ?? "";
  }
}

async function* responses() {
  for await (const event of await client.responses.create({ input: question, stream: true })) {
    yield event.type === "response.output_text.delta" ? event.delta : "";
  }
}

// useChat's `Chat`: the text on its screen, and what it reports.
async function* hook(version) {
  const { Chat } = await import(`@ai-sdk/react${version}`);
  const { DefaultChatTransport } = await import(`ai${version}`);
  const failures = [];
  const transport = new DefaultChatTransport({ api: `${url}/ai-sdk/chat` });
  const chat = new Chat({ id: randomUUID(), transport, onError: (error) => failures.push(error) });
  const shown = () =>
    chat.messages
      .filter((message) => message.role === "assistant")
      .flatMap((message) => message.parts)
      .map((part) => part.text ?? "")
      .join("");
  let wake = () => {};
  chat["~registerMessagesCallback"](() => wake()); // as the hook does
  let isOver = false;
  const sending = chat.sendMessage({ text: question }).finally(() => {
    isOver = true;
    wake();
  });
  let seen = 0;
  while (!isOver) {
    await new Promise((resolve) => {
      wake = resolve;
    });
    yield shown().slice(seen);
    seen = shown().length;
  }
  await sending;
  if (failures.length > 0 || chat.status === "error") {
    const failure = failures[0] ?? chat.error;
    failure.recover = () => recover(chat, shown);
    throw failure;
  }
}

// What docs/ai-sdk.md says, again and again while servers are replaced.
async function recover(chat, shown) {
  const load = async () => (chat.messages = await (await fetch(`${url}/ai-sdk/chat/${chat.id}/messages`)).json());
  for (;;) {
    try {
      await load();
      await chat.resumeStream();
      await load();
    } catch {
      continue;
    }
    if (chat.status === "ready") {
      return shown();
    }
  }
}

const CLIENTS = { completions, responses, "ai-7": () => hook(""), "ai-6": () => hook("-6") };

async function read(kind) {
  let text = "";
  let raised = null;
  let recovered = null;
  try {
    for await (const piece of CLIENTS[kind]()) {
      if (text === "" && piece !== "" && --waiting === 0) {
        writeFileSync(begun, "");
      }
      text += piece;
    }
  } catch (error) {
    raised = String(error?.message ?? error);
    recovered = (then === "resume" && (await error.recover?.())) || null;
  }
  console.log(JSON.stringify({ kind, text, raised, recovered }));
}

await Promise.all(kinds.flatMap((kind) => Array.from({ length: Number(count) }, () => read(kind))));
