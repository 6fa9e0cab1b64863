// Parts become blocks: the live half of what `indelible.content.assemble` does on the server.
//
// A running reply is a list of blocks that grow in place. Blocks of a snapshot carry no part ids, so the last one of a
// type adopts the first id that appends to it. `tool_progress` and `tool_started` are kept with their call.
//
// Must stay true (tests/web/thread.test.mjs): the blocks of a whole stream are the blocks of the stored message.

/**
 * @typedef {object} Block
 * @property {string} type
 * @property {string} [text]
 * @property {string} [id]
 * @property {string} [name]
 * @property {string} [arguments]
 * @property {string} [call_id]
 * @property {any} [output]
 * @property {boolean} [is_error]
 * @property {"ran" | "failed" | "not_run" | "unknown"} [outcome]  of a tool result; none: it ran
 * @property {string} [reason]  why it did not run, or is unknown
 * @property {boolean} [started]
 * @property {string} [progress]
 * @property {string | null} [started_at]
 * @property {string | null} [ended_at]
 * @property {string} [url]
 * @property {string} [title]
 * @property {string} [quote]
 * @property {string} [media_type]
 * @property {string} [file_id]
 * @property {string} [data]
 * @property {number} [size]
 * @property {any} [metadata]
 * @property {string} [partId]  of a live block: the part that appends to it
 * @property {boolean} [closed] of a live block: nothing appends to it any more
 */

/** @param {Block[]} blocks @param {string} type @param {string} id @returns {Block | undefined} */
function find(blocks, type, id) {
  const known = blocks.find((block) => block.type === type && block.partId === id && !block.closed);
  if (known) return known;
  const last = blocks.findLast((block) => block.type === type);
  if (!last || last.partId !== undefined || last.closed) return undefined;
  last.partId = id;
  return last;
}

/** @param {Block[]} blocks @param {string} type @param {string} id @param {Partial<Block>} more @returns {Block} */
function open(blocks, type, id, more = {}) {
  const block = { type, partId: id, text: "", ...more };
  blocks.push(block);
  return block;
}

/** @param {Block[]} blocks @param {string} id @param {string} [name] @returns {Block} */
function findCall(blocks, id, name) {
  return (
    blocks.find((block) => block.type === "tool_call" && block.id === id) ??
    open(blocks, "tool_call", id, { id, name: name ?? "", arguments: "", text: undefined })
  );
}

/** @param {Block[]} blocks @param {string} type @param {string} id @param {string} delta @param {Partial<Block>} more */
function append(blocks, type, id, delta, more = {}) {
  const block = find(blocks, type, id) ?? open(blocks, type, id, more);
  block.text += delta;
}

/** @param {Block[]} blocks @param {string} type @param {string} id @param {string | null} at */
function close(blocks, type, id, at = null) {
  const block = find(blocks, type, id);
  if (!block) return;
  block.closed = true;
  if (type === "reasoning") block.ended_at = at;
}

/** @type {Record<string, (blocks: Block[], part: any) => void>} */
const HANDLERS = {
  text_start: (blocks, { id }) => void open(blocks, "text", id),
  text_delta: (blocks, { id, delta }) => append(blocks, "text", id, delta),
  text_end: (blocks, { id }) => close(blocks, "text", id),
  reasoning_start: (blocks, { id, at }) => void open(blocks, "reasoning", id, { started_at: at ?? null }),
  reasoning_delta: (blocks, { id, delta }) => append(blocks, "reasoning", id, delta ?? ""),
  reasoning_end: (blocks, { id, at }) => close(blocks, "reasoning", id, at ?? null),
  tool_input_start: (blocks, { id, name }) => void findCall(blocks, id, name),
  tool_input_delta(blocks, { id, delta }) {
    const call = findCall(blocks, id);
    call.arguments = (call.arguments ?? "") + delta;
  },
  tool_call(blocks, { id, name, arguments: given }) {
    Object.assign(findCall(blocks, id, name), { name, arguments: given ?? "" });
  },
  tool_started(blocks, { call_id, name }) {
    findCall(blocks, call_id, name).started = true;
  },
  tool_progress(blocks, { call_id, message }) {
    const call = findCall(blocks, call_id);
    call.progress = call.progress ? `${call.progress}\n${message}` : message;
  },
  tool_result: (blocks, part) => void blocks.push(part),
  source: (blocks, part) => void blocks.push(part),
  file: (blocks, part) => void blocks.push(part),
};

/** Apply one part to the blocks of the running reply. Unknown parts change nothing. @param {Block[]} blocks @param {any} part */
export function applyPart(blocks, part) {
  HANDLERS[part.type]?.(blocks, part);
}
