// The plain page: a list of chats, one conversation, a place to write.
//
// What is on the page is what the feed told (chat.js), drawn once per frame at most. The address holds the chat, so
// a reload goes on where it was; a running reply comes back with the snapshot. A connection that is lost is opened again
// at the last cursor, for as long as it takes. Text is put in as text, never as HTML.

import * as api from "./api.js";
import { Chat } from "./chat.js";

const KINDS = [
  "snapshot", "message", "head", "attempt", "part", "reset", "status", "queue", "retry", "error", "chat", "resync", "end",
];
const STATUS = {
  waiting: "", pending: "waiting for a worker", running: "answering", interrupting: "stopping",
  requires_action: "waiting for results", error: "failed",
};
const SHORTEST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 5000;

const $ = (id) => document.getElementById(id);
let chat = null;
let place = { id: null }; // where the user is: a chat, or one that is still to be made
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
  hangUp();
  drawn.clear();
  $("messages").replaceChildren();
  chat = id ? new Chat(id) : null;
  if (place.id !== id || !id) place = { id };
  cursor = null;
  problem = null;
  isConnected = true;
  document.body.classList.remove("chats-shown");
  if (id) listen(id);
  draw();
  refreshList();
}

function hangUp() {
  clearTimeout(reopening);
  feed?.close();
  feed = null;
}

function listen(id) {
  const own = (feed = api.openFeed(id, cursor));
  for (const kind of KINDS) {
    own.addEventListener(kind, (event) => {
      // A lost connection is an event named error too, but it brings no data.
      if (event.data === undefined || feed !== own) return;
      cursor = event.lastEventId || cursor;
      take(kind, JSON.parse(event.data));
    });
  }
  own.onopen = () => noteConnection(true);
  own.onerror = (event) => { if (event.data === undefined && feed === own) listenAgain(id); };
}

function listenAgain(id) {
  hangUp();
  noteConnection(false);
  reopening = setTimeout(async () => {
    const gone = await api.readChat(id).then(() => null, (error) => (error.status === 404 ? error : null));
    if (chat?.id !== id || feed) return;
    if (gone) showProblem(gone);
    else listen(id);
  }, waitMs);
  waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
}

function noteConnection(is) {
  isConnected = is;
  if (is) waitMs = SHORTEST_WAIT_MS;
  drawState();
}

function take(kind, data) {
  if (kind === "end") return data.reason === "deleted" ? go(null) : listenAgain(chat.id);
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
  if (block.type === "reasoning") {
    const made = element("details");
    made.append(element("summary", "", "Thinking"), element("div", "text", block.text));
    return made;
  }
  return element("div", block.type === "text" ? "text" : "call", describe(block));
}

function describe(block) {
  switch (block.type) {
    case "text": return block.text;
    case "tool_call": return `⚙ ${block.name} ${block.arguments ?? ""}`;
    case "tool_result": {
      const output = typeof block.output === "string" ? block.output : JSON.stringify(block.output);
      return `${block.is_error ? "✗" : "→"} ${output ?? ""}`;
    }
    case "source": return `↗ ${block.title ?? ""} ${block.url ?? ""}`;
    default: return `File: ${block.name ?? block.media_type ?? block.type}`;
  }
}

// What is there already stays as it is, so that what somebody has selected, opened or scrolled to does too.
function drawItem(item, { role, blocks, cut, live }) {
  item.className = `${role}${cut ? " cut" : ""}${live ? " live" : ""}`;
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
  const said = place.firstChild?.data ?? "";
  if (said && text.startsWith(said)) place.firstChild.appendData(text.slice(said.length));
  else place.textContent = text;
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
  const said = chat?.messages.findLast(({ role }) => ["assistant", "user"].includes(role));
  const words = chat?.retry ? `trying again: ${chat.retry.message ?? ""}` : STATUS[chat?.status] ?? "";
  const trouble = problem ?? chat?.error?.message ?? "";
  $("title").textContent = chat?.title ?? (chat ? "Untitled" : "New chat");
  document.title = chat?.title ? `${chat.title} · Indelible` : "Indelible";
  $("status").textContent = isConnected ? words : "reconnecting…";
  $("stop").hidden = !chat?.busy;
  $("stop").disabled = chat?.status === "interrupting";
  $("retry").hidden = chat?.status !== "error";
  $("go-on").hidden = !(chat?.status === "idle" && said?.role === "assistant" && said.partial);
  $("problem").hidden = !trouble;
  $("problem").textContent = trouble;
  drawQueue(chat?.queue ?? []);
}

// Only when it has changed: a button that is drawn anew under somebody's finger does not notice that it was pressed.
function drawQueue(queue) {
  const state = JSON.stringify(queue);
  if ($("queue").dataset.state === state) return;
  $("queue").dataset.state = state;
  $("queue").replaceChildren(...queue.map(drawQueued));
}

function drawQueued(queued) {
  const item = element("li");
  const remove = element("button", "", "✕");
  remove.type = "button";
  remove.ariaLabel = "Take out of the queue";
  remove.onclick = () => attempt(() => api.deleteQueued(chat.id, queued.id));
  item.append(element("span", "", `Next: ${queued.blocks.map(describe).join(" ")}`), remove);
  return item;
}

async function refreshList() {
  const page = await api.listChats().catch(() => null);
  if (!page) return; // the old list is better than none
  $("chat-list").replaceChildren(...page.items.map(({ id, title, status }) => {
    const link = element("a", ["running", "pending", "interrupting"].includes(status) ? "busy" : "", title ?? "Untitled");
    link.href = `#${id}`;
    if (id === chat?.id) link.ariaCurrent = "page";
    const item = element("li");
    item.append(link);
    return item;
  }));
}

// --- doing ---

async function attempt(act) {
  try {
    problem = null;
    drawState();
    return await act();
  } catch (error) {
    showProblem(error);
    return undefined;
  }
}

function showProblem(error) {
  problem = error.message;
  drawState();
}

// One after the other: what is sent while a new chat is being made belongs to that chat.
function send() {
  const words = $("words").value.trim();
  const meant = place;
  if (!words) return;
  $("words").value = "";
  sending = sending.then(async () => {
    const isNew = !meant.id;
    const sent = await attempt(() => (isNew ? api.createChat(words) : api.sendMessage(meant.id, words)));
    if (!sent) $("words").value = [words, $("words").value].filter(Boolean).join("\n"); // what was typed is never lost
    else if (isNew) {
      meant.id = sent.id;
      if (place === meant) go(sent.id);
    }
  });
}

function go(id) {
  history.pushState(null, "", id ? `#${id}` : location.pathname);
  open(id);
}

function readAddress() {
  return location.hash.match(/^#(\w+)$/)?.[1] ?? null;
}

function stop() {
  if (chat?.busy && chat.status !== "interrupting") attempt(() => api.interrupt(chat.id, chat.turn));
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("words").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
$("stop").onclick = stop;
$("retry").onclick = () => attempt(() => api.retry(chat.id));
$("go-on").onclick = () => attempt(() => api.goOn(chat.id));
$("new-chat").onclick = () => { go(null); $("words").focus(); };
$("show-chats").onclick = () => document.body.classList.add("chats-shown");
$("shade").onclick = () => document.body.classList.remove("chats-shown");
window.addEventListener("popstate", () => open(readAddress())); // also when a link changes the hash
open(readAddress());
