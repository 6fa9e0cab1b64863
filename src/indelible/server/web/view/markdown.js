// Markdown tokens as elements. Nothing here makes HTML from a string, so nothing in a text can become a script.
//
// Closed blocks are drawn once, in chunks; only the open block is drawn per frame. HTML in the text is shown as text
// (but `<br>`), a link leads to a harmless address or is text, and a picture from elsewhere is a link that is fetched
// only if it is clicked. Math is loaded when it occurs.

import { decodeEntities, inlineImage, MarkdownDocument, safeLink } from "../core/markdown.js";
import { CodeBlock } from "./codeblock.js";
import { html, memo, useEffect, useRef } from "./html.js";
import { icon } from "./icons.js";

/** @import { Cell, MarkdownBlock, Token } from "../core/markdown.js" */
/** @import { Mark } from "../core/thread.js" */
/** @import { Child, Drawn } from "./html.js" */

const CHUNK = 32;
const SENTENCE = 40; // characters

/** @param {Token[] | undefined} tokens @returns {Child} */
function inline(tokens) {
  return (tokens ?? []).map((token) => {
    switch (token.type) {
      case "text":
      case "escape":
        return token.tokens ? inline(token.tokens) : decodeEntities(token.text ?? "");
      case "strong": return html`<strong>${inline(token.tokens)}</strong>`;
      case "em": return html`<em>${inline(token.tokens)}</em>`;
      case "del": return html`<del>${inline(token.tokens)}</del>`;
      case "codespan": return html`<code dir="ltr">${token.text}</code>`;
      case "br": return html`<br />`;
      case "checkbox": return html`<input type="checkbox" disabled checked=${token.checked} aria-label=${token.checked ? "done" : "to do"} />`;
      case "link": return drawLink(token.href ?? "", inline(token.tokens), token.title);
      case "image": return drawImage(token);
      case "math": return html`<${Formula} text=${token.text} display=${token.display} />`;
      case "html": return /^<br\s*\/?>$/i.test(token.raw.trim()) ? html`<br />` : token.raw;
      default: return token.tokens ? inline(token.tokens) : (token.raw ?? "");
    }
  });
}

/** @param {string} href @param {Child} content @param {string | null} [title] */
export function drawLink(href, content, title) {
  const safe = safeLink(href);
  if (!safe) return html`<span class="unsafe" title="This link was disabled.">${content}</span>`;
  return html`<a href=${safe} title=${title || undefined} target="_blank" rel="noopener noreferrer nofollow">${content}</a>`;
}

/** @param {Token} token */
function drawImage({ href = "", text }) {
  const own = inlineImage(href);
  if (own) return html`<img src=${own} alt=${text} loading="lazy" />`;
  const safe = safeLink(href);
  const host = safe ? new URL(safe).host : "";
  const label = html`${icon("file")} ${text || "Image"}${host && html` <small>from ${host}, not loaded</small>`}`;
  return safe ? html`<span class="remote">${drawLink(safe, label)}</span>` : html`<span class="remote">${label}</span>`;
}

/** @param {Token} token @returns {Child} */
function block(token) {
  switch (token.type) {
    case "heading": {
      const level = `h${Math.min(6, Math.max(3, (token.depth ?? 1) + 1))}`; // h1 and h2 belong to the page
      return html`<${level} class="md-h${token.depth}">${inline(token.tokens)}</${level}>`;
    }
    case "paragraph": return html`<p>${inline(token.tokens)}</p>`;
    case "text": return token.tokens ? inline(token.tokens) : decodeEntities(token.text ?? "");
    case "plain": return html`<${Plain} text=${token.text} />`;
    case "code": return html`<${CodeBlock} text=${token.text} lang=${token.lang ?? ""} open=${Boolean(token.open)} />`;
    case "blockquote": return html`<blockquote>${token.tokens?.map(block)}</blockquote>`;
    case "hr": return html`<hr />`;
    case "list": return drawList(token);
    case "checkbox": return inline([token]); // in a list without blank lines it stands beside the text
    case "table": return drawTable(token);
    case "math": return html`<${Formula} text=${token.text} display=${true} />`;
    case "html": return html`<p class="raw">${token.raw.trimEnd()}</p>`;
    case "space":
    case "def": return null;
    default: return token.tokens ? html`<p>${inline(token.tokens)}</p>` : html`<p>${token.raw}</p>`;
  }
}

/** @param {Token} token */
function drawList({ ordered, start, items = [] }) {
  const content = items.map((item) => html`<li class=${item.task ? "task" : undefined}>${item.tokens.map(block)}</li>`);
  return ordered ? html`<ol start=${start === 1 ? undefined : start}>${content}</ol>` : html`<ul>${content}</ul>`;
}

/** Words are never broken in a table: it scrolls. A column with sentences keeps a width to read them. @param {Token} token */
function drawTable({ header = [], rows = [], align = [] }) {
  const isLong = header.map((one, at) => [one, ...rows.map((row) => row[at])].some((each) => each?.text?.length > SENTENCE && each.text.includes(" ")));
  const cell = (/** @type {Cell} */ one, /** @type {number} */ at, /** @type {string} */ name) =>
    html`<${name} class=${[align[at] && `to-${align[at]}`, isLong[at] && "long"].filter(Boolean).join(" ") || undefined}>${inline(one.tokens)}</${name}>`;
  return html`<div class="table" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr>${header.map((one, at) => cell(one, at, "th"))}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((one, at) => cell(one, at, "td"))}</tr>`)}</tbody>
  </table></div>`;
}

/** A very long paragraph, in pieces, so that only the last one changes. */
function Plain(/** @type {{text: string}} */ { text }) {
  const pieces = [];
  for (let at = 0; at < text.length; at += 4000) pieces.push(html`<${PlainPiece} key=${at} text=${text.slice(at, at + 4000)} />`);
  return html`<p>${pieces}</p>`;
}
const PlainPiece = memo((/** @type {{text: string}} */ { text }) => html`<span>${text}</span>`);

/** @typedef {{render: (text: string, place: Element, options: object) => void}} Katex  what is used of it */
/** @type {Promise<Katex> | null} */
let katex = null;

const Formula = memo((/** @type {{text: string, display: boolean}} */ { text, display }) => {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    let isGone = false;
    katex ??= import("../vendor/katex.js").then(() => /** @type {{katex: Katex}} */ (/** @type {unknown} */ (globalThis)).katex);
    katex.then((library) => {
      if (isGone || !place.current) return;
      const drawn = document.createElement("span");
      try {
        library.render(text, drawn, { output: "mathml", displayMode: display, throwOnError: true, strict: false, trust: false, maxExpand: 500, maxSize: 20 });
        place.current.replaceChildren(drawn);
      } catch {
        place.current.textContent = text; // not a formula: what was written stays readable
      }
    }, () => {});
    return () => void (isGone = true);
  }, [text, display]);
  return html`<span class=${display ? "math display" : "math"} dir="ltr" ref=${place}>${text}</span>`;
});

// A block stays in its chunk when it is closed, so its elements stay, too. `version` changes while a block of it is open.
const Chunk = memo((/** @type {{document: MarkdownDocument, from: number, to: number, marks: Mark[], version: string}} */ { document, from, to, marks }) =>
  html`<div class="chunk">${document.slice(from, to).map((one) => drawOnce(one, marks))}</div>`);

/** @type {WeakMap<MarkdownBlock, {marks: Mark[], drawn: Drawn}>} */
const drawings = new WeakMap();

/** @param {MarkdownBlock} one @param {Mark[]} marks */
function drawOnce(one, marks) {
  const known = drawings.get(one);
  if (known?.marks === marks) return known.drawn; // the same element again: Preact does not look inside
  const drawn = drawBlock(one, marks);
  drawings.set(one, { marks, drawn });
  return drawn;
}

/** @param {MarkdownBlock} one @param {Mark[]} marks */
function drawBlock({ key, at, token }, marks) {
  const mark = marks.find((found) => found.at >= at && found.at < at + Math.max(1, token.raw.length));
  return html`<div class=${mark ? "block resumed" : "block"} key=${key} dir="auto">
    ${mark && html`<span class="resume-mark" tabindex="0" role="note" title=${markText(mark)} aria-label=${markText(mark)}></span>`}
    ${block(token)}
  </div>`;
}

/** @param {{reason: string | null}} mark */
function markText({ reason }) {
  if (reason === "interrupted") return "You stopped here, and the reply was continued. Nothing was lost.";
  if (reason === "failed" || reason === "length") return "The reply was interrupted here and continued. Nothing was lost.";
  return "The server restarted here. Nothing was lost.";
}

/** @type {Mark[]} */
const NO_MARKS = [];

/** A text as Markdown. `open`: more of it may come. `role`: "text" of the conversation, or what stands beside it. */
export const Markdown = memo((/** @type {{text: string, open: boolean, marks?: Mark[], role?: string}} */ { text, open, marks = NO_MARKS, role = "text" }) => {
  const held = useRef(/** @type {MarkdownDocument | null} */ (null));
  const document = (held.current ??= new MarkdownDocument()).update(text, open);
  const finished = useRef({ generation: 0, marks: NO_MARKS, list: /** @type {Drawn[]} */ ([]) });
  const count = document.closed.length + document.open.length;
  const chunks = finished.current;
  const isMarked = marks.length === chunks.marks.length && marks.every(({ at, reason }, number) => at === chunks.marks[number].at && reason === chunks.marks[number].reason);
  const own = isMarked ? chunks.marks : marks; // new arrays with every token, and mostly the same marks
  if (chunks.generation !== document.generation || !isMarked) Object.assign(chunks, { generation: document.generation, marks: own, list: [] });
  const drawn = chunks.list.slice();
  for (let from = drawn.length * CHUNK; from < count; from += CHUNK) {
    const to = Math.min(from + CHUNK, count);
    const isFinished = to - from === CHUNK && to <= document.closed.length;
    const chunk = html`<${Chunk} key=${`${document.generation}:${from}`} document=${document} from=${from} to=${to} marks=${own} version=${isFinished ? "" : text} />`;
    drawn.push(chunk);
    if (isFinished) chunks.list.push(chunk); // the same element again: Preact does not look inside
  }
  return html`<div class=${`${role} md${count > 200 ? " long" : ""}`}>${drawn}</div>`;
});
