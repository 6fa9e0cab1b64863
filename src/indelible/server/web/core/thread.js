// What a conversation looks like: the state of a chat as a list of items with keys that never change.
//
// An item is a message of the user, a reply, or a notice. A reply is everything between two messages of the user:
// thinking, tool calls paired with their results, text, sources. A reply that was interrupted and continued (`continues`,
// after a crash, a restart or a stop) is one text with a mark where it was taken up again; the thinking that preceded
// the continuation stands above the text, never inside a sentence.
//
// Keys: a reply has the key of its first attempt, or of its first message if the page never saw it run; a tool call has
// its call's id; a text is counted within its reply. A message of the user has the key of its outbox entry, from the moment
// it is sent (`makePendingItem`). So nothing on the screen is replaced when a message is stored or a reply ends.
// Items whose input did not change are the same objects as before, so the view can skip them; and so are the pages of
// items (`paginate`), so that it need not even look at them. A token changes the last item of the last page.
//
// Must stay true (tests/web/thread.test.mjs): the keys before and after the end of a reply are equal, and so is its text; a
// message of the user has one key, whether it is on its way or stored.

/** @typedef {import("./chat.js").ChatState} ChatState */
/** @typedef {import("./chat.js").Message} Message */
/** @typedef {import("./blocks.js").Block} Block */
/**
 * @typedef {{at: number, reason: string | null}} Mark  a place in a text where it was taken up again
 * @typedef {object} ViewBlock
 * @property {string} key
 * @property {"text" | "thinking" | "tool" | "source" | "file" | "summary"} type
 * @property {string} [text]
 * @property {Mark[]} [marks]
 * @property {boolean} [open]  of a live block: it may still grow
 * @property {Block} [call]
 * @property {Block} [result]
 * @property {Block} [block]
 * @property {string | null} [startedAt]
 * @property {string | null} [endedAt]
 */
/**
 * @typedef {object} Item
 * @property {string} key
 * @property {"user" | "reply" | "notice"} kind
 * @property {Message[]} messages
 * @property {ViewBlock[]} blocks
 * @property {boolean} live
 * @property {boolean} cut
 * @property {string | null} reason
 * @property {string[]} siblings
 * @property {number} [startedAt]
 * @property {import("./outbox.js").Entry} [pending]  a message on its way: it has no messages yet
 */

const OUTCOME_UNKNOWN = /^outcome unknown\b/i;
// The server's own results for calls that nobody ran (content/assemble.py, store/commands/change.py).
const NOT_RUN = /^(Not run: the |Interrupted: the user |Cancelled: the (user|conversation) |Expired: nobody )/;

/** Whether a tool's result says that nobody knows whether the tool had an effect. @param {Block | undefined} result */
export function isOutcomeUnknown(result) {
  return Boolean(result?.is_error) && typeof result?.output === "string" && OUTCOME_UNKNOWN.test(result.output);
}

/** Whether a call was never run: the reply was stopped, or broke off, before. @param {Block | undefined} result */
export function isNotRun(result) {
  return Boolean(result?.is_error) && typeof result?.output === "string" && NOT_RUN.test(result.output);
}

const PAGE = 64;

/** Builds the items of one chat again and again, and reuses those that did not change. */
export class Thread {
  constructor() {
    /** @type {Map<string, {signature: any[], item: Item}>} */
    this.cache = new Map();
    this.revision = -1;
    /** @type {Item[]} */ this.items = [];
    /** @type {Group | undefined} */ this.lastGroup = undefined;
    /** @type {Item[]} */ this.paged = [];
    /** @type {Item[][]} */ this.pages = [];
    /** @type {Set<string>} */ this.starts = new Set(); // the keys of the first items of all pages
  }

  /** @param {ChatState} chat @returns {Item[]} */
  build(chat) {
    if (chat.revision !== this.revision) {
      this.items = this.#buildAll(chat);
      this.revision = chat.revision;
    } else if (chat.live && this.lastGroup) {
      this.items = [...this.items.slice(0, -1), makeItem(this.lastGroup, chat.live, this.items[this.items.length - 1].siblings)];
    }
    return this.items;
  }

  /**
   * The items in pages. A page begins where it began before, whatever comes above it or below.
   * @param {Item[]} items @returns {Item[][]}
   */
  paginate(items) {
    const { paged } = this;
    let same = 0;
    while (same < items.length && items[same] === paged[same]) same += 1;
    if (same === items.length && same === paged.length) return this.pages;
    const known = new Map(this.pages.map((page) => [page[0].key, page]));
    /** @type {Item[][]} */
    const pages = [];
    for (let at = 0; at < items.length; at += pages[pages.length - 1].length) {
      const old = known.get(items[at].key);
      if (old && old.length === PAGE && at + PAGE <= same) {
        pages.push(old); // nothing in it can have changed
        continue;
      }
      let end = at + 1;
      while (end < items.length && end - at < PAGE && !this.starts.has(items[end].key)) end += 1;
      const page = items.slice(at, end);
      pages.push(old && old.length === page.length && old.every((item, number) => item === page[number]) ? old : page);
      this.starts.add(items[at].key);
    }
    this.paged = items;
    this.pages = pages;
    return pages;
  }

  /** @param {ChatState} chat @returns {Item[]} */
  #buildAll(chat) {
    const groups = group(chat);
    this.lastGroup = groups.at(-1);
    /** @type {Map<string, {signature: any[], item: Item}>} */
    const next = new Map();
    const items = groups.map((found) => {
      const known = this.cache.get(found.key);
      const live = found.live ? chat.live : null;
      const siblings = found.messages[0] ? chat.siblingsOf(found.messages[0]) : [];
      const signature = [...found.messages, siblings, live];
      const same = !live && known && known.signature.length === signature.length
        && known.signature.every((part, at) => part === signature[at]);
      const item = same ? known.item : makeItem(found, live, siblings);
      next.set(found.key, { signature, item });
      return item;
    });
    this.cache = next;
    return items;
  }
}

/**
 * @typedef {{key: string, kind: "user" | "reply" | "notice", messages: Message[], live: boolean}} Group
 * @param {ChatState} chat
 * @returns {Group[]}
 */
function group(chat) {
  /** @type {Group[]} */
  const groups = [];
  for (const message of chat.messages) {
    const last = groups.at(-1);
    const key = chat.keys.get(message.id) ?? message.id;
    if (message.role === "user" || message.role === "system") groups.push({ key, kind: "user", messages: [message], live: false });
    else if (message.role === "notice") {
      if (!(last?.kind === "reply" && repeatsTheReply(last, message))) {
        groups.push({ key, kind: "notice", messages: [message], live: false });
      }
    } else {
      const reply = openReply(groups);
      if (reply) {
        // A notice between an interrupted reply and its continuation has done its work.
        groups.length = groups.indexOf(reply) + 1;
        reply.messages.push(message);
      } else groups.push({ key, kind: "reply", messages: [message], live: false });
    }
  }
  if (chat.live) {
    const reply = openReply(groups);
    if (reply) {
      groups.length = groups.indexOf(reply) + 1;
      reply.live = true;
    } else groups.push({ key: chat.live.attempt, kind: "reply", messages: [], live: true });
  }
  const last = groups.at(-1);
  // The card of the error says it already.
  if (last?.kind === "notice" && chat.status === "error" && plainText(last.messages[0].blocks) === chat.error?.message) groups.pop();
  return groups;
}

/** The reply at the end, if nothing but notices follows it. @param {Group[]} groups */
function openReply(groups) {
  const found = groups.findLast(({ kind }) => kind !== "notice");
  if (found?.kind !== "reply") return undefined;
  // A notice that tells of something else (a summary, a limit) ends the reply.
  return groups.slice(groups.indexOf(found) + 1).every(({ messages }) => !messages[0]?.blocks.some(isSummary)) ? found : undefined;
}

/** "Stopped by you." below a reply that shows "Stopped · saved" is said twice. So is its length limit. @param {Group} reply @param {Message} notice */
function repeatsTheReply(reply, notice) {
  const last = reply.messages.findLast(({ role }) => role === "assistant");
  const text = plainText(notice.blocks);
  if (!last?.partial) return false;
  return last.reason === "interrupted" ? text.startsWith("Stopped") : last.reason === "length" && text.startsWith("The reply reached its length limit");
}

/** @param {Block} block */
function isSummary(block) {
  return Boolean(block.metadata?.compaction);
}

/** @param {Block[]} blocks */
export function plainText(blocks) {
  return blocks.filter(({ type }) => type === "text").map(({ text }) => text ?? "").join("\n\n");
}

/** @param {Group} found @param {ChatState["live"]} live @param {string[]} siblings @returns {Item} */
function makeItem({ key, kind, messages }, live, siblings) {
  const last = messages.findLast(({ role }) => role !== "tool");
  return {
    key, kind, messages, siblings,
    blocks: joinBlocks(key, messages, live),
    live: Boolean(live),
    cut: !live && Boolean(last?.partial),
    reason: last?.reason ?? null,
    startedAt: live?.startedAt,
  };
}

/** A message that the server does not have yet, where the stored one will be. @param {import("./outbox.js").Entry} entry @returns {Item} */
export function makePendingItem(entry) {
  return { key: entry.key, kind: "user", messages: [], blocks: [], live: false, cut: false, reason: null, siblings: [], pending: entry };
}

/** @param {string} key @param {Message[]} messages @param {ChatState["live"]} live @returns {ViewBlock[]} */
function joinBlocks(key, messages, live) {
  /** @type {ViewBlock[]} */
  const blocks = [];
  const counts = { text: 0, thinking: 0, other: 0 };
  /** @type {Message | undefined} */
  let previous;
  const add = (/** @type {Block[]} */ added, /** @type {boolean} */ isLive, /** @type {Message | undefined} */ message) => {
    // After an interruption the text goes on in the same paragraph, even if the model thought again in between.
    const resumes = previous?.partial && (message ? message.continues === previous.id || message.continues !== null : true);
    let target = resumes && blocks.at(-1)?.type === "text" ? blocks.at(-1) : undefined;
    added.forEach((block, at) => {
      const open = isLive && at === added.length - 1 && !block.closed;
      if (block.type === "text") {
        if (!block.text && !open) return;
        if (isSummary(block)) return void blocks.push({ key: `${key}:o${counts.other++}`, type: "summary", text: block.text });
        if (target) {
          Object.assign(target, {
            marks: [...(target.marks ?? []), { at: (target.text ?? "").length, reason: previous?.reason ?? null }],
            text: (target.text ?? "") + block.text, open,
          });
          target = undefined;
        } else blocks.push({ key: `${key}:t${counts.text++}`, type: "text", text: block.text ?? "", marks: [], open });
      } else if (block.type === "reasoning") {
        if (!block.text && !open) return;
        const made = /** @type {ViewBlock} */ ({
          key: `${key}:r${counts.thinking++}`, type: "thinking", text: block.text ?? "", open,
          startedAt: block.started_at, endedAt: block.ended_at,
        });
        if (target) blocks.splice(blocks.indexOf(target), 0, made);
        else blocks.push(made);
      } else {
        target = undefined;
        addOther(blocks, block, `${key}:o${counts.other}`, open);
        counts.other += 1;
      }
    });
    if (message) previous = message.role === "assistant" ? message : undefined;
  };
  for (const message of messages) add(message.blocks, false, message);
  if (live) add(live.blocks, true, undefined);
  return blocks;
}

/** @param {ViewBlock[]} blocks @param {Block} block @param {string} key @param {boolean} open */
function addOther(blocks, block, key, open) {
  if (block.type === "tool_call") {
    blocks.push({ key: `tool:${block.id}`, type: "tool", call: block, open });
  } else if (block.type === "tool_result") {
    const card = blocks.findLast(({ type, call, result }) => type === "tool" && !result && call?.id === block.call_id);
    if (card) Object.assign(card, { result: block, open: false });
    else blocks.push({ key, type: "tool", call: { type: "tool_call", id: block.call_id, name: block.name }, result: block });
  } else blocks.push({ key, type: block.type === "source" ? "source" : "file", block });
}

/** The text of an item as the user copies it: without thinking and tools. @param {Item} item */
export function copyText(item) {
  return item.blocks.filter(({ type }) => type === "text").map(({ text }) => text).join("\n\n");
}
