// A code block: text first, colours when it is complete, in sight and the browser is idle.
//
// Blocks are coloured one after the other, a few milliseconds at a time: 300 of them in one task would be a stall of
// 400 ms (`python -m bench page`).
//
// highlight.js gives a tree of tokens, which becomes spans: no HTML. Long code is drawn in pieces of lines, so that a
// running reply changes only the last piece.

import { html, memo, useEffect, useRef, useState } from "./html.js";
import { icon } from "./icons.js";

/** @import { Child } from "./html.js" */
/** @typedef {{scope?: string, children: (Highlighted | string)[]}} Highlighted */
/**
 * What is used of highlight.js.
 * @typedef {object} Highlighter
 * @property {(name: string) => unknown} getLanguage
 * @property {(text: string, options: {language: string, ignoreIllegals: boolean}) => {_emitter: {rootNode: Highlighted}}} highlight
 */

const LINES = 60;
const LONGEST_COLOURED = 60_000;
/** @type {Promise<Highlighter> | null} */
let library = null;

/** What is to be coloured, in the order in which it came into sight. @type {(() => void)[]} */
const queue = [];
let isWorking = false;

const whenIdle = (/** @type {(deadline?: IdleDeadline) => void} */ work) =>
  "requestIdleCallback" in globalThis ? requestIdleCallback(work, { timeout: 1000 }) : setTimeout(work, 50);

/** @param {IdleDeadline} [deadline] */
function workOff(deadline) {
  do queue.shift()?.();
  while (queue.length && (deadline?.timeRemaining() ?? 0) > 5);
  isWorking = queue.length > 0;
  if (isWorking) whenIdle(workOff);
}

/** @param {() => void} work */
async function colourLater(work) {
  queue.push(work);
  if (isWorking) return;
  isWorking = true;
  library ??= import("../vendor/highlight.mjs").then((loaded) => /** @type {Highlighter} */ (loaded.default));
  await library.catch(() => null);
  whenIdle(workOff);
}

/**
 * What to do when a chunk of a text (view/markdown.js) comes near the visible part. Chunks are watched and not blocks,
 * because the browser looks at everything that is watched in every frame.
 * @type {Map<Element, Set<() => void>>}
 */
const unseen = new Map();
const watcher = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    for (const work of unseen.get(target) ?? []) work();
    forget(target);
  }
}, /** @type {IntersectionObserverInit} */ ({ scrollMargin: "800px" }));

/** @param {Element} place */
function forget(place) {
  unseen.delete(place);
  watcher.unobserve(place);
}

/** @param {Element} block @param {() => void} work @returns {() => void} */
function whenSeen(block, work) {
  const place = block.closest(".chunk") ?? block;
  const waiting = unseen.get(place) ?? new Set();
  waiting.add(work);
  unseen.set(place, waiting);
  watcher.observe(place);
  return () => {
    waiting.delete(work);
    if (!waiting.size && unseen.get(place) === waiting) forget(place);
  };
}

/** @param {Highlighted | string} node @returns {Child} */
function drawNode(node) {
  if (typeof node === "string") return node;
  const content = node.children.map(drawNode);
  return node.scope ? html`<span class=${`hl-${node.scope.split(".")[0]}`}>${content}</span>` : content;
}

const Piece = memo((/** @type {{text: string}} */ { text }) => html`<span class="lines">${text}</span>`);

/** @param {string} text */
function cut(text) {
  const pieces = [];
  let from = 0;
  for (let at = 0, count = 0; at < text.length; at += 1) {
    if (text.charCodeAt(at) === 10 && (count += 1) % LINES === 0) {
      pieces.push(text.slice(from, at + 1));
      from = at + 1;
    }
  }
  pieces.push(text.slice(from));
  return pieces;
}

/** Whether it is in the clipboard now. Over plain http a browser has only the old way. @param {string} text */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  const field = Object.assign(document.createElement("textarea"), { value: text, className: "hidden" });
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  before?.focus();
  return isDone;
}

export const CopyButton = memo((/** @type {{text: string | (() => string), label: string}} */ { text, label }) => {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    if (!(await copyText(typeof text === "function" ? text() : text))) return;
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<button type="button" class="quiet small" onClick=${copy} aria-label=${isCopied ? "Copied" : label} title=${isCopied ? "Copied" : label}>
    ${icon(isCopied ? "check" : "copy")}
  </button>`;
});

export const CodeBlock = memo((/** @type {{text: string, lang: string, open: boolean}} */ { text, lang, open }) => {
  const name = (lang.match(/^[\w+#.-]+/)?.[0] ?? "").toLowerCase();
  const [tree, setTree] = useState(/** @type {{text: string, root: Highlighted} | null} */ (null));
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (open || !name || text.length > LONGEST_COLOURED || !place.current) return;
    let isGone = false;
    const colour = async () => {
      const highlighter = await library?.catch(() => null);
      if (isGone || !highlighter?.getLanguage(name)) return;
      setTree({ text, root: highlighter.highlight(text, { language: name, ignoreIllegals: true })._emitter.rootNode });
    };
    const stop = whenSeen(place.current, () => void colourLater(() => void colour()));
    return () => {
      isGone = true;
      stop();
    };
  }, [text, name, open]);
  const isColoured = tree && tree.text === text;
  return html`<figure class="code" ref=${place}>
    <figcaption><span>${name || "text"}</span><${CopyButton} text=${text} label="Copy code" /></figcaption>
    <pre tabindex="0" dir="ltr"><code>${isColoured ? drawNode(tree.root) : cut(text).map((piece, at) => html`<${Piece} key=${at} text=${piece} />`)}</code></pre>
  </figure>`;
});
