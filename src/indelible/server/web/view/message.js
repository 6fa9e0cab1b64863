// One item of the conversation: a message of the user, a reply, or a notice.

import { plainText, copyText } from "../core/thread.js";
import { clockTime, cost, duration, elapsed, tokens } from "../core/formatting.js";
import { CopyButton } from "./codeblock.js";
import { FileCard } from "./filecard.js";
import { html, memo, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { icon } from "./icons.js";
import { drawLink, Markdown } from "./markdown.js";
import { Menu } from "./menu.js";
import { ToolCard } from "./toolcard.js";

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

const Thinking = memo(({ text, open, startedAt, endedAt, since }) => {
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

/** @param {{c: any, block: any, live: boolean, since: number}} props */
function Block({ c, block, live, since }) {
  switch (block.type) {
    case "text": return html`<${Markdown} text=${block.text} open=${block.open} marks=${block.marks} />`;
    case "thinking": return html`<${Thinking} text=${block.text} open=${block.open} startedAt=${block.startedAt} endedAt=${block.endedAt} since=${since} />`;
    case "tool": return html`<${ToolCard} c=${c} call=${block.call} result=${block.result} live=${live} args=${block.call.arguments}
      progress=${block.result?.progress || block.call.progress} started=${block.call.started} />`;
    case "source": return html`<p class="source">${icon("link")} ${drawLink(block.block.url ?? "", block.block.title || block.block.url || "Source")}${block.block.quote && html` <q>${block.block.quote}</q>`}</p>`;
    case "summary": return html`<details class="thinking"><summary>${icon("spark")}<span>Summary</span></summary><${Markdown} text=${block.text} open=${false} /></details>`;
    default: return html`<${FileCard} c=${c} block=${block.block} />`;
  }
}

/** ‹ 2/3 › @param {{c: any, item: any, busy: boolean}} props */
function Versions({ c, item, busy }) {
  const { siblings, messages } = item;
  const at = siblings.indexOf(messages[0]?.id);
  if (siblings.length < 2 || at < 0) return null;
  const isBusy = busy || c.isReadOnly;
  const go = (/** @type {number} */ step) => c.messages.switchBranch(siblings[at + step]);
  return html`<span class="versions">
    <button type="button" class="quiet small" aria-label="Previous version" disabled=${at === 0 || isBusy} onClick=${() => go(-1)}>${icon("left")}</button>
    <span aria-label=${`Version ${at + 1} of ${siblings.length}`}>${at + 1}/${siblings.length}</span>
    <button type="button" class="quiet small" aria-label="Next version" disabled=${at === siblings.length - 1 || isBusy} onClick=${() => go(1)}>${icon("right")}</button>
  </span>`;
}

/** @param {{c: any, item: any}} props */
function Editor({ c, item }) {
  const [text, setText] = useState(c.messages.editing?.text ?? plainText(item.messages[0].blocks));
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useLayoutEffect(() => {
    const { editing } = c.messages;
    if (!editing?.isNew) return; // it comes back with what was written; the user may be typing elsewhere
    editing.isNew = false;
    field.current?.focus();
    field.current?.setSelectionRange(text.length, text.length);
  }, []);
  const end = () => document.getElementById("message")?.focus();
  const cancel = () => { c.messages.cancel(item.messages[0]); end(); };
  const save = () => { void c.messages.edit(item.messages[0], text); end(); };
  const type = (/** @type {string} */ typed) => { setText(typed); c.messages.type(item.messages[0].id, typed); };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape" && !event.isComposing) { event.stopPropagation(); cancel(); }
    if (c.preferences.sends(event)) { event.preventDefault(); save(); }
  };
  return html`<div class="editor">
    <textarea ref=${field} aria-label="Edit message" rows=${Math.min(12, text.split("\n").length + 1)} value=${text} dir="auto" onKeyDown=${key}
      onInput=${(/** @type {any} */ { target }) => type(target.value)}></textarea>
    <p class="hint">The old message and its replies are kept as another version.</p>
    <div class="buttons"><button type="button" onClick=${cancel}>Cancel</button><button type="button" class="primary" onClick=${save}>Save and send</button></div>
  </div>`;
}

/** The time, the model and what it cost. @param {{item: any}} props */
function Facts({ item }) {
  const last = item.messages.at(-1);
  const replies = item.messages.filter((/** @type {any} */ { role }) => role === "assistant");
  const used = replies.reduce((/** @type {number} */ sum, /** @type {any} */ { usage }) => sum + (usage?.output_tokens ?? 0), 0);
  const usd = replies.reduce((/** @type {number} */ sum, /** @type {any} */ { cost_usd }) => sum + (cost_usd ?? 0), 0);
  const model = replies.findLast((/** @type {any} */ one) => one.model)?.model;
  const facts = [clockTime(last.created_at), model, used > 0 && tokens(used), usd > 0 && cost(usd), !item.cut && "saved ✓"].filter(Boolean);
  return html`<span class="facts">${facts.join(" · ")}</span>`;
}

/** A message that is on its way keeps its elements when it is stored: the same component draws both. */
const User = memo(({ c, item, isEditing, isBusy, canWrite }) => {
  const { pending } = item;
  const [message] = item.messages;
  const blocks = pending ? (pending.body.content ?? []) : message.blocks;
  const files = blocks.filter((/** @type {any} */ { type }) => type === "file");
  const text = pending ? pending.text : plainText(blocks);
  return html`<li role="listitem" class=${pending ? `user pending ${pending.state}` : "user"} id=${message && `m-${message.id}`} aria-label="You">
    ${isEditing ? html`<${Editor} c=${c} item=${item} />` : html`<div class="bubble">
      ${files.map((/** @type {any} */ block) => html`<${FileCard} c=${c} block=${block} />`)}${text && html`<div class="text" dir="auto">${text}</div>`}
    </div>`}
    ${pending ? html`<${OnItsWay} c=${c} entry=${pending} />` : !isEditing && html`<div class="actions">
      <${Versions} c=${c} item=${item} busy=${isBusy} />
      <span class="facts">${clockTime(message.created_at)}</span>
      <${CopyButton} text=${text} label="Copy message" />
      ${canWrite && html`<button type="button" class="quiet small" aria-label="Edit message" title="Edit message" disabled=${isBusy}
        onClick=${() => c.messages.begin(message)}>${icon("edit")}</button>`}
    </div>`}
  </li>`;
});

/** @param {{c: any, entry: any}} props */
function OnItsWay({ c, entry }) {
  if (entry.state !== "waiting" && entry.state !== "refused") return html`<div class="actions"><span class="facts">Sending…</span></div>`;
  return html`<div class="not-sent"><span role="alert">Not sent: ${entry.error}</span>
    <button type="button" class="link" onClick=${() => c.outbox.retry(entry.key)}>Retry</button>
    <button type="button" class="link" onClick=${() => c.editPending(entry.key)}>Edit</button></div>`;
}

const Reply = memo(({ c, item, isLast, isBusy, canWrite, models, status }) => {
  const { blocks, live, cut, reason, messages } = item;
  const isEmpty = !blocks.some((/** @type {any} */ { type, text }) => type !== "text" || text);
  const first = messages[0]?.id;
  const state = `assistant${live ? " live" : ""}${cut ? ` cut ${reason ?? ""}` : ""}`;
  const others = models.map((/** @type {any} */ { id }) => ({ text: id, act: () => c.messages.regenerate(item, id) }));
  return html`<li role="listitem" class=${state} id=${first && `m-${first}`} aria-label="Indelible" aria-busy=${live ? "true" : undefined}>
    <div class="body">
      ${blocks.map((/** @type {any} */ block) => html`<${Block} key=${block.key} c=${c} block=${block} live=${live} since=${item.startedAt} />`)}
      ${live && isEmpty && html`<${Waiting} model=${c.chat?.live?.model ?? c.chat?.details.model} since=${item.startedAt ?? 0} />`}
    </div>
    ${cut && html`<p class="cut-note">${reason === "interrupted" ? "Stopped · saved" : reason === "length" ? "The model's output limit was reached · saved" : "Interrupted · saved"}</p>`}
    ${!live && messages.length > 0 && html`<div class="actions">
      ${canWrite && cut && isLast && !isBusy && status !== "error" && html`<button type="button" class="small" onClick=${() => c.attempt(() => c.api.continueReply(c.chat.id))}>Continue</button>`}
      <${CopyButton} text=${() => copyText(item)} label="Copy reply" />
      ${canWrite && html`
        <button type="button" class="quiet small" aria-label="Regenerate" title="Regenerate" disabled=${isBusy} onClick=${() => c.messages.regenerate(item)}>${icon("redo")}</button>
        <button type="button" class="quiet small" aria-label="Fork from here" title="Fork from here" onClick=${() => c.chats.fork(item)}>${icon("fork")}</button>
        <${Menu} label="More reply actions" className="quiet small" button=${icon("more")} entries=${[
          { text: "Attempts and requests", icon: icon("debug"), act: () => c.show({ kind: "debug", chat: c.chat, item }) },
          ...(others.length > 1 && !isBusy ? others.map((/** @type {any} */ entry) => ({ ...entry, icon: icon("redo"), text: `Regenerate with ${entry.text}` })) : []),
        ]} />`}
      <${Versions} c=${c} item=${item} busy=${isBusy} />
      <${Facts} item=${item} />
    </div>`}
  </li>`;
});

const Notice = memo(({ item, canRetry, c }) => {
  const summary = item.blocks.find((/** @type {any} */ { type }) => type === "summary");
  const text = item.blocks.filter((/** @type {any} */ { type }) => type === "text").map((/** @type {any} */ block) => block.text).join("\n");
  return html`<li role="listitem" class="notice" id=${`m-${item.messages[0].id}`}>
    ${text && html`<span class="text">${text}</span>`}
    ${summary && html`<details class="thinking"><summary>${icon("spark")}<span>Summary</span></summary><${Markdown} text=${summary.text} open=${false} /></details>`}
    ${canRetry && html` <button type="button" class="small" onClick=${() => c.attempt(() => c.api.retry(c.chat.id))}>Retry</button>`}
  </li>`;
});

/** @param {{c: any, item: any, isLast: boolean, isEditing: boolean, isBusy: boolean, canWrite: boolean, models: any[], status: string | null}} props */
export function Item({ c, item, isLast, isEditing, isBusy, canWrite, models, status }) {
  if (item.kind === "user") return html`<${User} c=${c} item=${item} isEditing=${isEditing} isBusy=${isBusy} canWrite=${canWrite} />`;
  if (item.kind === "notice") return html`<${Notice} c=${c} item=${item} canRetry=${isLast && canWrite && !isBusy && status !== "error" && c.messages.canRetry} />`;
  return html`<${Reply} c=${c} item=${item} isLast=${isLast} isBusy=${isBusy} canWrite=${canWrite} models=${models} status=${status} />`;
}
