// The page: a list of chats, one conversation, and a composer.
//
// The page draws the state that the feed delivers (chat.js), at most once per frame. The URL names the chat, so a reload
// returns to it, and the snapshot restores a running reply. A lost connection is reopened at the last cursor, without a
// limit on attempts. Text is inserted as text, never as HTML.

import * as api from "./api.js";
import { Chat } from "./chat.js";

const KINDS = [
  "snapshot", "message", "head", "attempt", "part", "reset", "status", "queue", "retry", "action", "error", "chat", "resync", "end",
];
const STATUS = {
  idle: "", pending: "Queued: no worker is running", running: "Replying…", interrupting: "Stopping…",
  requires_action: "Waiting for tool results", error: "Error",
};
const SHORTEST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 5000;
const TITLE_CHARS = 60;

const $ = (id) => document.getElementById(id);
let chat = null;
let place = { id: null }; // what the user is looking at: a chat, or one that does not exist yet
let feed = null;
let cursor = null;
let waitMs = SHORTEST_WAIT_MS;
let reopening = null;
let isConnected = true;
let problem = null;
let sending = Promise.resolve();
let drawn = new Map();
let frame = null;

// --- reading ---

function open(id) {
  closeFeed();
  drawn.clear();
  $("messages").replaceChildren();
  chat = id ? new Chat(id) : null;
  if (place.id !== id || !id) place = { id };
  cursor = null;
  problem = null;
  isConnected = true;
  document.body.classList.remove("chats-shown");
  if (id) openFeed(id);
  draw();
  refreshList();
}

function closeFeed() {
  clearTimeout(reopening);
  feed?.close();
  feed = null;
}

function openFeed(id) {
  const own = (feed = api.openFeed(id, cursor));
  for (const kind of KINDS) {
    own.addEventListener(kind, (event) => {
      // A lost connection is also an event named error, but without data.
      if (event.data === undefined || feed !== own) return;
      cursor = event.lastEventId || cursor;
      handle(kind, JSON.parse(event.data));
    });
  }
  own.onopen = () => noteConnection(true);
  own.onerror = (event) => { if (event.data === undefined && feed === own) reopenFeed(id); };
}

function reopenFeed(id) {
  closeFeed();
  noteConnection(false);
  reopening = setTimeout(async () => {
    const gone = await api.readChat(id).then(() => null, (error) => (error.status === 404 ? error : null));
    if (chat?.id !== id || feed) return;
    if (gone) showProblem(new Error("Chat not found. It may have been deleted."));
    else openFeed(id);
  }, waitMs);
  waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
}

function noteConnection(is) {
  isConnected = is;
  if (is) waitMs = SHORTEST_WAIT_MS;
  drawState();
}

function handle(kind, data) {
  if (kind === "end") return data.reason === "deleted" ? navigate(null) : reopenFeed(chat.id);
  chat.apply(kind, data);
  if (chat.needsReload) return open(chat.id);
  if (["chat", "status"].includes(kind)) refreshList();
  frame ??= requestAnimationFrame(draw);
}

// --- drawing ---

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawBlock(block) {
  if (block.type === "reasoning" || block.metadata?.compaction) {
    const made = element("details");
    const title = block.type === "reasoning" ? "Thinking" : "Summary";
    made.append(element("summary", "", title), element("div", "text", block.text));
    return made;
  }
  return element("div", block.type === "text" ? "text" : "call", describe(block));
}

function describeProgress({ progress }) {
  return progress ? ` · ${progress.split("\n").at(-1)}` : "";
}

function describe(block) {
  switch (block.type) {
    case "text": return block.text;
    case "tool_call": return `⚙ ${block.name} ${block.arguments ?? ""}${describeProgress(block)}`;
    case "tool_result": {
      const output = typeof block.output === "string" ? block.output : JSON.stringify(block.output);
      return `${block.is_error ? "✗" : "→"} ${output ?? ""}`;
    }
    case "source": return `↗ ${block.title ?? ""} ${block.url ?? ""}`;
    default: return `File: ${block.name ?? block.media_type ?? block.type}`;
  }
}

// Elements that exist already stay, and so do the user's selection, open details and scroll position.
function drawItem(item, { role, blocks, cut, reason, live }) {
  item.className = `${role}${cut ? ` cut ${reason ?? ""}` : ""}${live ? " live" : ""}`;
  const visible = blocks.filter(({ type, text }) => !["text", "reasoning"].includes(type) || text);
  visible.forEach((block, at) => {
    const known = item.children[at];
    if (known?.dataset.type !== block.type) {
      const made = drawBlock(block);
      made.dataset.type = block.type;
      if (live && block.type === "reasoning") made.open = true;
      if (known) known.replaceWith(made);
      else item.append(made);
    } else {
      grow(block.type === "reasoning" ? known.lastChild : known, block.type === "reasoning" ? block.text : describe(block));
    }
  });
  while (item.children.length > visible.length) item.lastChild.remove();
}

function grow(place, text) {
  const shown = place.firstChild?.data ?? "";
  if (shown && text.startsWith(shown)) place.firstChild.appendData(text.slice(shown.length));
  else place.textContent = text;
}

function describeRetry({ message, delay_ms, number }) {
  const reason = (message ?? "").split(". ")[0].replace(/\.$/, "");
  return `${reason}. Retrying in ${Math.ceil((delay_ms ?? 0) / 1000)} s (attempt ${(number ?? 0) + 1})`;
}

function quoteFirstMessage({ messages }) {
  const text = messages.find(({ role }) => role === "user")?.blocks.find(({ type }) => type === "text")?.text;
  return text && (text.length > TITLE_CHARS ? `${text.slice(0, TITLE_CHARS)}…` : text);
}

function draw() {
  frame = null;
  const list = $("messages");
  const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  const items = chat?.items ?? [];
  const before = drawn;
  drawn = new Map(items.map((item) => [item.key, before.get(item.key) ?? element("li")]));
  for (const [key, place] of before) if (!drawn.has(key)) place.remove();
  items.forEach((item, at) => {
    const place = drawn.get(item.key);
    const state = `${item.lastId} ${item.cut}`;
    if (item.live || place.dataset.state !== state) drawItem(place, item);
    place.dataset.state = item.live ? "live" : state;
    if (list.children[at] !== place) list.insertBefore(place, list.children[at] ?? null);
  });
  if (follows) list.scrollTop = list.scrollHeight;
  drawState();
}

function drawState() {
  const last = chat?.messages.findLast(({ role }) => ["assistant", "user"].includes(role));
  const status = chat?.retry ? describeRetry(chat.retry) : STATUS[chat?.status] ?? "";
  const trouble = problem ?? chat?.error?.message ?? "";
  $("title").textContent = chat?.title ?? (chat && quoteFirstMessage(chat)) ?? "New chat";
  document.title = chat?.title ? `${chat.title} · Indelible` : "Indelible";
  $("status").textContent = isConnected ? status : "Reconnecting…";
  $("stop").hidden = !(chat?.busy || chat?.status === "requires_action");
  $("stop").disabled = chat?.status === "interrupting";
  // Also a question without a reply: it was stopped before the first word, or the model returned nothing.
  $("retry").hidden = !(chat?.status === "error" || (chat?.status === "idle" && last?.role === "user"));
  $("continue").hidden = !(chat?.status === "idle" && last?.role === "assistant" && last.partial);
  $("problem").hidden = !trouble;
  $("problem").textContent = trouble;
  drawQueue(chat?.queue ?? []);
}

// Redrawn only on a change: a button that is replaced while it is pressed loses the click.
function drawQueue(queue) {
  const state = JSON.stringify(queue);
  if ($("queue").dataset.state === state) return;
  $("queue").dataset.state = state;
  $("queue").replaceChildren(...queue.map(drawQueued));
}

function drawQueued(queued, at, queue) {
  const item = element("li");
  const remove = element("button", "", "✕");
  remove.type = "button";
  remove.ariaLabel = "Remove from queue";
  remove.onclick = () => attempt(() => api.deleteQueued(chat.id, queued.id));
  item.append(element("span", "", `Queued · ${at + 1} of ${queue.length}: ${queued.blocks.map(describe).join(" ")}`), remove);
  return item;
}

async function refreshList() {
  const page = await api.listChats().catch(() => null);
  if (!page) return; // keep the old list
  $("chat-list").replaceChildren(...page.items.map(({ id, title, status }) => {
    const link = element("a", ["running", "pending", "interrupting"].includes(status) ? "busy" : "", title ?? "New chat");
    link.href = `#${id}`;
    if (id === chat?.id) link.ariaCurrent = "page";
    const item = element("li");
    item.append(link);
    return item;
  }));
}

// --- actions ---

async function attempt(action) {
  try {
    problem = null;
    drawState();
    return await action();
  } catch (error) {
    showProblem(error);
    return undefined;
  }
}

function showProblem(error) {
  // fetch throws a TypeError ("Failed to fetch") if there was no response at all.
  problem = error instanceof TypeError ? "The server is unreachable. Try again when it is back." : error.message;
  drawState();
}

// One at a time: a message sent while a new chat is being created belongs to that chat.
function send() {
  const text = $("message").value.trim();
  const target = place;
  if (!text) return;
  $("message").value = "";
  sending = sending.then(async () => {
    const isNew = !target.id;
    const sent = await attempt(() => (isNew ? api.createChat(text) : api.sendMessage(target.id, text)));
    if (!sent) {
      $("message").value = [text, $("message").value].filter(Boolean).join("\n"); // never lose what was typed
      showProblem(new Error(`Not sent. ${problem}`));
    } else if (isNew) {
      target.id = sent.id;
      if (place === target) navigate(sent.id);
    }
  });
}

function navigate(id) {
  history.pushState(null, "", id ? `#${id}` : location.pathname);
  open(id);
}

function readAddress() {
  return location.hash.match(/^#(\w+)$/)?.[1] ?? null;
}

function stop() {
  const canStop = (chat?.busy && chat.status !== "interrupting") || chat?.status === "requires_action";
  if (canStop) attempt(() => api.interrupt(chat.id, chat.turn));
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
$("stop").onclick = stop;
$("retry").onclick = () => attempt(() => api.retry(chat.id));
$("continue").onclick = () => attempt(() => api.continueReply(chat.id));
$("new-chat").onclick = () => { navigate(null); $("message").focus(); };
$("show-chats").onclick = () => document.body.classList.add("chats-shown");
$("shade").onclick = () => document.body.classList.remove("chats-shown");
window.addEventListener("popstate", () => open(readAddress())); // also when a link changes the hash
open(readAddress());
