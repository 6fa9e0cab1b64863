// One item of the conversation: a message of the user, a reply, or a notice.

import { plainText, copyText } from "../core/thread.js";
import { clockTime, cost, duration, elapsed, tokens } from "../core/formatting.js";
import { CopyButton } from "./codeblock.js";
import { FileCard } from "./filecard.js";
import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { icon } from "./icons.js";
import { drawLink, Markdown } from "./markdown.js";
import { Menu } from "./menu.js";
import { chats, messageActions, outbox, preferences, show, state, writing } from "./page.js";
import { isReadOnly } from "./state.js";
import { ToolCard } from "./toolcard.js";

/** @import { Entry } from "../core/outbox.js" */
/** @import { Model } from "../core/shapes.js" */
/** @import { Item as ThreadItem, ViewBlock } from "../core/thread.js" */
/** @import { On } from "./html.js" */
/**
 * @typedef {object} ItemProps
 * @property {ThreadItem} item
 * @property {boolean} isLast
 * @property {boolean} isEditing
 * @property {boolean} isBusy
 * @property {boolean} canWrite
 * @property {Model[]} models
 * @property {string | null} [status]
 */

const STILL_WAITING_MS = 5000;

/** The seconds since then, drawn once a second. */
function Seconds(/** @type {{since: number}} */ { since }) {
  const [, setTick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setTick((tick) => tick + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.floor((Date.now() - since) / 1000);
  return seconds > 0 ? ` ${seconds} s` : "";
}

const Thinking = memo((/** @type {Pick<ViewBlock, "text" | "open" | "startedAt" | "endedAt"> & {since: number}} */ { text, open, startedAt, endedAt, since }) => {
  const ms = elapsed(startedAt, endedAt);
  const from = startedAt ? Date.parse(startedAt) : since;
  return html`<details class="thinking">
    <summary>${icon("think")}<span>${open ? html`Thinking…<${Seconds} since=${from} />` : ms === null ? "Thought" : `Thought for ${duration(ms)}`}</span></summary>
    <${Markdown} text=${text} open=${open} role="thought" />
  </details>`;
});

/** @param {{model?: string | null, since: number}} props */
function Waiting({ model, since }) {
  const [isLong, setLong] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLong(true), Math.max(0, since + STILL_WAITING_MS - Date.now()));
    return () => clearTimeout(timer);
  }, [since]);
  return html`<p class="waiting"><span class="pulse" aria-hidden="true"></span>${isLong ? `Still waiting for ${model ?? "the model"}…` : html`<span class="hidden">Waiting for the first word</span>`}</p>`;
}

/** @param {{block: ViewBlock, live: boolean, since: number}} props */
function Block({ block, live, since }) {
  switch (block.type) {
    case "text": return html`<${Markdown} text=${block.text} open=${block.open} marks=${block.marks} />`;
    case "thinking": return html`<${Thinking} text=${block.text} open=${block.open} startedAt=${block.startedAt} endedAt=${block.endedAt} since=${since} />`;
    case "tool": return html`<${ToolCard} call=${block.call} result=${block.result} live=${live} args=${block.call?.arguments}
      progress=${block.result?.progress || block.call?.progress} started=${block.call?.started} />`;
    case "source": return html`<p class="source">${icon("link")} ${drawLink(block.block?.url ?? "", block.block?.title || block.block?.url || "Source")}${block.block?.quote && html` <q>${block.block.quote}</q>`}</p>`;
    case "summary": return html`<details class="thinking"><summary>${icon("spark")}<span>Summary</span></summary><${Markdown} text=${block.text} open=${false} /></details>`;
    default: return html`<${FileCard} block=${block.block} />`;
  }
}

/** ‹ 2/3 › @param {{item: ThreadItem, busy: boolean}} props */
function Versions({ item, busy }) {
  const { siblings, messages } = item;
  const at = siblings.indexOf(messages[0]?.id);
  if (siblings.length < 2 || at < 0) return null;
  const isBusy = busy || isReadOnly(state);
  const go = (/** @type {number} */ step) => messageActions.switchBranch(siblings[at + step]);
  return html`<span class="versions">
    <button type="button" class="quiet small" aria-label="Previous version" disabled=${at === 0 || isBusy} onClick=${() => go(-1)}>${icon("left")}</button>
    <span aria-label=${`Version ${at + 1} of ${siblings.length}`}>${at + 1}/${siblings.length}</span>
    <button type="button" class="quiet small" aria-label="Next version" disabled=${at === siblings.length - 1 || isBusy} onClick=${() => go(1)}>${icon("right")}</button>
  </span>`;
}

/** @param {{item: ThreadItem}} props */
function Editor({ item }) {
  const [text, setText] = useState(messageActions.editing?.text ?? plainText(item.messages[0].blocks));
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useLayoutEffect(() => {
    const { editing } = messageActions;
    if (!editing?.isNew) return; // it comes back with what was written; the user may be typing elsewhere
    editing.isNew = false;
    field.current?.focus();
    field.current?.setSelectionRange(text.length, text.length);
  }, []);
  const end = () => document.getElementById("message")?.focus();
  const cancel = () => { messageActions.cancel(item.messages[0]); end(); };
  const save = () => { void messageActions.edit(item.messages[0], text); end(); };
  const type = (/** @type {string} */ typed) => { setText(typed); messageActions.type(item.messages[0].id, typed); };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && !event.isComposing) { event.stopPropagation(); cancel(); }
    if (preferences.sends(event)) { event.preventDefault(); save(); }
  };
  return html`<div class="editor">
    <textarea ref=${field} aria-label="Edit message" rows=${Math.min(12, text.split("\n").length + 1)} value=${text} dir="auto" onKeyDown=${key}
      onInput=${(/** @type {On<HTMLTextAreaElement>} */ { currentTarget: target }) => type(target.value)}></textarea>
    <p class="hint">The old message and its replies are kept as another version.</p>
    <div class="buttons"><button type="button" onClick=${cancel}>Cancel</button><button type="button" class="primary" onClick=${save}>Save and send</button></div>
  </div>`;
}

/** The time, the model and what it cost. @param {{item: ThreadItem}} props */
function Facts({ item }) {
  const last = item.messages.at(-1);
  const replies = item.messages.filter(({ role }) => role === "assistant");
  const used = replies.reduce((sum, { usage }) => sum + (usage?.output_tokens ?? 0), 0);
  const usd = replies.reduce((sum, { cost_usd }) => sum + (cost_usd ?? 0), 0);
  const model = replies.findLast((one) => one.model)?.model;
  const facts = [last && clockTime(last.created_at), model, used > 0 && tokens(used), usd > 0 && cost(usd), !item.cut && "saved ✓"].filter(Boolean);
  return html`<span class="facts">${facts.join(" · ")}</span>`;
}

/** A message that is on its way keeps its elements when it is stored: the same component draws both. */
const User = memo((/** @type {Pick<ItemProps, "item" | "isEditing" | "isBusy" | "canWrite">} */ { item, isEditing, isBusy, canWrite }) => {
  const { pending } = item;
  const [message] = item.messages;
  const blocks = pending ? (pending.body.content ?? []) : message.blocks;
  const files = blocks.filter(({ type }) => type === "file");
  const text = pending ? pending.text : plainText(blocks);
  return html`<li role="listitem" class=${pending ? `user pending ${pending.state}` : "user"} id=${message && `m-${message.id}`} aria-label="You">
    ${isEditing ? html`<${Editor} item=${item} />` : html`<div class="bubble">
      ${files.map((block) => html`<${FileCard} block=${block} />`)}${text && html`<div class="text" dir="auto">${text}</div>`}
    </div>`}
    ${pending ? html`<${OnItsWay} entry=${pending} />` : !isEditing && html`<div class="actions">
      <${Versions} item=${item} busy=${isBusy} />
      <span class="facts">${clockTime(message.created_at)}</span>
      <${CopyButton} text=${text} label="Copy message" />
      ${canWrite && html`<button type="button" class="quiet small" aria-label="Edit message" title="Edit message" disabled=${isBusy}
        onClick=${() => messageActions.begin(message)}>${icon("edit")}</button>`}
    </div>`}
  </li>`;
});

/** @param {{entry: Entry}} props */
function OnItsWay({ entry }) {
  if (entry.state !== "waiting" && entry.state !== "refused") return html`<div class="actions"><span class="facts">Sending…</span></div>`;
  return html`<div class="not-sent"><span role="alert">Not sent: ${entry.error}</span>
    <button type="button" class="link" onClick=${() => outbox.retry(entry.key)}>Retry</button>
    <button type="button" class="link" onClick=${() => writing.takeBack(entry.key)}>Edit</button></div>`;
}

const Reply = memo((/** @type {Omit<ItemProps, "isEditing">} */ { item, isLast, isBusy, canWrite, models, status }) => {
  const { blocks, live, cut, reason, messages } = item;
  const isEmpty = !blocks.some(({ type, text }) => type !== "text" || text);
  const first = messages[0]?.id;
  const look = `assistant${live ? " live" : ""}${cut ? ` cut ${reason ?? ""}` : ""}`;
  const others = models.map(({ id }) => ({ text: id, act: () => messageActions.regenerate(item, id) }));
  return html`<li role="listitem" class=${look} id=${first && `m-${first}`} aria-label="Indelible" aria-busy=${live ? "true" : undefined}>
    <div class="body">
      ${blocks.map((block) => html`<${Block} key=${block.key} block=${block} live=${live} since=${item.startedAt} />`)}
      ${live && isEmpty && html`<${Waiting} model=${state.chat?.live?.model ?? state.chat?.details.model} since=${item.startedAt ?? 0} />`}
    </div>
    ${cut && html`<p class="cut-note">${reason === "interrupted" ? "Stopped · saved" : reason === "length" ? "The model's output limit was reached · saved" : "Interrupted · saved"}</p>`}
    ${!live && messages.length > 0 && html`<div class="actions">
      ${canWrite && cut && isLast && !isBusy && status !== "error" && html`<button type="button" class="small" onClick=${() => messageActions.continueReply()}>Continue</button>`}
      <${CopyButton} text=${() => copyText(item)} label="Copy reply" />
      ${canWrite && html`
        <button type="button" class="quiet small" aria-label="Regenerate" title="Regenerate" disabled=${isBusy} onClick=${() => messageActions.regenerate(item)}>${icon("redo")}</button>
        <button type="button" class="quiet small" aria-label="Fork from here" title="Fork from here" onClick=${() => chats.fork(item)}>${icon("fork")}</button>
        <${Menu} label="More reply actions" className="quiet small" button=${icon("more")} entries=${[
          { text: "Attempts and requests", icon: icon("debug"), act: () => state.chat && show({ kind: "debug", chat: state.chat, item }) },
          ...(others.length > 1 && !isBusy ? others.map((entry) => ({ ...entry, icon: icon("redo"), text: `Regenerate with ${entry.text}` })) : []),
        ]} />`}
      <${Versions} item=${item} busy=${isBusy} />
      <${Facts} item=${item} />
    </div>`}
  </li>`;
});

const Notice = memo((/** @type {{item: ThreadItem, canRetry: boolean}} */ { item, canRetry }) => {
  const summary = item.blocks.find(({ type }) => type === "summary");
  const text = item.blocks.filter(({ type }) => type === "text").map((block) => block.text).join("\n");
  return html`<li role="listitem" class="notice" id=${`m-${item.messages[0].id}`}>
    ${text && html`<span class="text">${text}</span>`}
    ${summary && html`<details class="thinking"><summary>${icon("spark")}<span>Summary</span></summary><${Markdown} text=${summary.text} open=${false} /></details>`}
    ${canRetry && html` <button type="button" class="small" onClick=${() => messageActions.retry()}>Retry</button>`}
  </li>`;
});

/** @param {ItemProps} props */
export function Item({ item, isLast, isEditing, isBusy, canWrite, models, status }) {
  if (item.kind === "user") return html`<${User} item=${item} isEditing=${isEditing} isBusy=${isBusy} canWrite=${canWrite} />`;
  if (item.kind === "notice") return html`<${Notice} item=${item} canRetry=${isLast && canWrite && !isBusy && status !== "error" && messageActions.canRetry} />`;
  return html`<${Reply} item=${item} isLast=${isLast} isBusy=${isBusy} canWrite=${canWrite} models=${models} status=${status} />`;
}
