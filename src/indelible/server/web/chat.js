// The state of one chat on the page: the events of the feed, assembled into messages and a running reply.
//
// `apply` handles one event of the feed. A running reply is a list of blocks; parts are assembled into them by the same
// rules as on the server. The message that ends the attempt replaces them. `items` is what the page draws: an interrupted
// reply that was resumed, after a crash or a restart, is one item and reads as one text.

export class Chat {
  constructor(id) {
    this.id = id;
    this.title = null;
    this.status = "idle";
    this.turn = null;
    this.error = null;
    this.retry = null;
    this.messages = [];
    this.queue = [];
    this.live = null;
    this.needsReload = false;
  }

  get busy() {
    return ["running", "pending", "interrupting"].includes(this.status);
  }

  apply(kind, data) {
    HANDLERS[kind]?.(this, data);
  }

  get items() {
    const items = [];
    for (const { id, role, partial, reason, continues, blocks } of this.messages) {
      const last = items.at(-1);
      if (last?.lastId !== undefined && continues === last.lastId) {
        Object.assign(last, { lastId: id, cut: partial, reason, blocks: join(last.blocks, blocks) });
      } else {
        items.push({ key: id, lastId: id, role, cut: partial, reason, blocks, live: false });
      }
    }
    if (this.live) addLive(items, this.live);
    return items;
  }
}

// The running reply continues an interrupted one, unless the user stopped that one.
function addLive(items, { attempt, blocks }) {
  const last = items.at(-1);
  if (last?.role === "assistant" && last.cut && last.reason !== "interrupted") {
    Object.assign(last, { cut: false, live: true, blocks: join(last.blocks, blocks) });
  } else {
    items.push({ key: attempt, role: "assistant", cut: false, blocks, live: true });
  }
}

function join(before, after) {
  const [last, first] = [before.at(-1), after[0]];
  if (last?.type !== "text" || first?.type !== "text") return [...before, ...after];
  return [...before.slice(0, -1), { ...last, text: last.text + first.text }, ...after.slice(1)];
}

const HANDLERS = {
  snapshot(chat, data) {
    for (const name of ["title", "status", "turn", "error", "retry", "messages", "queue"]) chat[name] = data[name];
    chat.live = data.live && { attempt: data.live.attempt, blocks: data.live.blocks.map((block) => ({ ...block })) };
    chat.needsReload = false;
  },
  message(chat, { message, attempt }) {
    if (attempt && chat.live?.attempt === attempt) chat.live = null;
    if (!chat.messages.some(({ id }) => id === message.id)) chat.messages.push(message);
  },
  head(chat) {
    chat.needsReload = true; // another branch: fetch its messages
  },
  attempt(chat, { attempt }) {
    chat.retry = null;
    chat.live = { attempt, blocks: [] };
    if (chat.status === "pending") chat.status = "running"; // a worker claimed the chat; no event reports this
  },
  part(chat, { attempt, parts }) {
    if (chat.live?.attempt !== attempt) chat.live = { attempt, blocks: [] };
    for (const part of parts) applyPart(chat.live.blocks, part);
  },
  reset(chat, { attempt }) {
    if (chat.live?.attempt === attempt) chat.live = null;
  },
  status(chat, { status, turn }) {
    chat.status = status;
    chat.turn = turn;
    if (status !== "error") chat.error = null;
    if (!chat.busy) chat.retry = null;
  },
  queue(chat, { queue }) {
    chat.queue = queue;
  },
  retry(chat, data) {
    if (data.attempt && chat.live?.attempt === data.attempt) chat.live = null;
    chat.retry = data;
  },
  error(chat, data) {
    chat.error = data;
  },
  chat(chat, data) {
    if ("title" in data) chat.title = data.title;
  },
};

// --- parts become blocks ---

function find(blocks, type, id) {
  const known = blocks.find((block) => block.type === type && block.partId === id && !block.closed);
  if (known) return known;
  // The blocks of a snapshot carry no part ids: the last one may still be growing.
  const last = blocks.findLast((block) => block.type === type);
  if (!last || last.partId !== undefined) return undefined;
  last.partId = id;
  return last;
}

function open(blocks, type, id, more = {}) {
  const block = { type, partId: id, text: "", ...more };
  blocks.push(block);
  return block;
}

function findCall(blocks, id, name) {
  return (
    blocks.find((block) => block.type === "tool_call" && block.id === id) ??
    open(blocks, "tool_call", id, { id, name: name ?? "", arguments: "" })
  );
}

const PART_HANDLERS = {
  text_start: (blocks, { id }) => open(blocks, "text", id),
  text_delta(blocks, { id, delta }) {
    (find(blocks, "text", id) ?? open(blocks, "text", id)).text += delta;
  },
  text_end(blocks, { id }) {
    const block = find(blocks, "text", id);
    if (block) block.closed = true;
  },
  reasoning_start: (blocks, { id }) => open(blocks, "reasoning", id),
  reasoning_delta(blocks, { id, delta }) {
    (find(blocks, "reasoning", id) ?? open(blocks, "reasoning", id)).text += delta ?? "";
  },
  reasoning_end(blocks, { id }) {
    const block = find(blocks, "reasoning", id);
    if (block) block.closed = true;
  },
  tool_input_start: (blocks, { id, name }) => findCall(blocks, id, name),
  tool_input_delta(blocks, { id, delta }) {
    findCall(blocks, id).arguments += delta;
  },
  tool_call(blocks, { id, name, arguments: given }) {
    Object.assign(findCall(blocks, id, name), { name, arguments: given ?? "" });
  },
  tool_started(blocks, { call_id, name }) {
    findCall(blocks, call_id, name).state = "running";
  },
  tool_progress(blocks, { call_id, message }) {
    const call = findCall(blocks, call_id);
    call.progress = call.progress ? `${call.progress}\n${message}` : message;
  },
  tool_result: (blocks, part) => blocks.push(part),
  source: (blocks, part) => blocks.push(part),
  file: (blocks, part) => blocks.push(part),
};

export function applyPart(blocks, part) {
  PART_HANDLERS[part.type]?.(blocks, part);
}
