// A shared chat, read by its link: every message of it as plain text, and a running reply as it is written.
//
// The page reloads the messages after each event that changes them; parts of a running reply are added as they come.

const BASE = new URL("..", import.meta.url).pathname.replace(/\/$/, "");
const KEY = location.pathname.split("/").pop();
const API = `${BASE}/api/v1/shared/${encodeURIComponent(KEY)}`;
const list = document.getElementById("messages");
const title = document.getElementById("title");
const problem = document.getElementById("problem");
let live = "";

async function get(path) {
  const response = await fetch(API + path);
  if (response.ok) return response.json();
  const told = await response.json().catch(() => null);
  throw new Error(told?.detail ?? `The server responded with status ${response.status}.`);
}

const textOf = (blocks) => blocks.filter((block) => block.type === "text").map((block) => block.text).join("\n\n");

function makeItem(role, text) {
  const item = document.createElement("li");
  item.className = role;
  item.textContent = text;
  return item;
}

async function load() {
  const found = [];
  let before = null;
  do {
    const page = await get(`/messages?limit=200${before ? `&before=${encodeURIComponent(before)}` : ""}`);
    found.unshift(...page.items);
    before = page.next;
  } while (before);
  const shown = found.map((message) => [message.role, textOf(message.blocks)]).filter(([, text]) => text);
  list.replaceChildren(...shown.map(([role, text]) => makeItem(role, text)));
  if (live) list.append(makeItem("assistant live", live));
}

function addLive(text) {
  live += text;
  let item = list.querySelector(".live");
  if (!item) {
    item = makeItem("assistant live", "");
    list.append(item);
  }
  item.textContent = live;
}

function fail(error) {
  problem.textContent = error.message;
  problem.hidden = false;
}

function read() {
  const feed = new EventSource(`${API}/events`);
  const on = (kind, handle) => feed.addEventListener(kind, (event) => {
    if (event.data !== undefined) Promise.resolve(handle(JSON.parse(event.data))).catch(fail); // else the connection's own error
  });
  on("snapshot", (chat) => {
    title.textContent = document.title = chat.title ?? "Shared chat";
    live = chat.live ? textOf(chat.live.blocks) : "";
    return load();
  });
  on("part", ({ parts }) => addLive(parts.filter((part) => part.type === "text_delta").map((part) => part.delta).join("")));
  for (const kind of ["message", "head", "reset", "retry", "error"]) {
    on(kind, () => {
      live = "";
      return load();
    });
  }
  on("chat", (chat) => { title.textContent = chat.title ?? title.textContent; });
  // A link that was removed: the stream ends, and asking again tells why.
  feed.addEventListener("error", () => { if (feed.readyState === EventSource.CLOSED) get("").catch(fail); });
}

read();
