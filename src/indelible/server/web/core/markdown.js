// Markdown that grows: text becomes a list of closed blocks and one open block, and only the open one is read again.
//
// marked's lexer splits a text into top-level blocks. Everything before the last block is closed: no later text changes
// it, so its tokens are kept and the view never touches its elements again. (Reading a reply of 200 kB costs 44 ms, one
// block 0.1 ms.) The tokens become elements, never HTML (view/markdown.js); HTML in the text is shown as text.
//
// Two long blocks are handled apart: a code block that is still open is not lexed at all, and a paragraph of more than
// PLAIN_CHARS is plain text, since neither could be read again for every frame.
//
// Links lead to http, https, mailto and tel only (`safeLink`).
//
// Must stay true (tests/web/markdown.test.mjs): fed in any pieces, the blocks of a text are the same.

import { Lexer, Marked } from "../vendor/marked.mjs";

const PLAIN_CHARS = 20_000;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n]*)\n/;

/** @typedef {{text: string, tokens: Token[]}} Cell */
/**
 * A token of marked, or one of ours (math, plain). What it has depends on its type.
 * @typedef {object} Token
 * @property {string} type
 * @property {string} raw
 * @property {string} [text]
 * @property {Token[]} [tokens]
 * @property {number} [depth]
 * @property {string} [lang]
 * @property {boolean} [open]
 * @property {boolean} [checked]
 * @property {string} [href]
 * @property {string | null} [title]
 * @property {boolean} [display]
 * @property {boolean} [ordered]
 * @property {number | ""} [start]
 * @property {{task: boolean, tokens: Token[]}[]} [items]
 * @property {Cell[]} [header]
 * @property {Cell[][]} [rows]
 * @property {(string | null)[]} [align]
 */
/** @typedef {{key: number, at: number, token: Token}} MarkdownBlock */

const MATH = [
  {
    name: "math", level: "block",
    // Only within this paragraph: a search through the whole rest, for each paragraph, would be quadratic.
    start(/** @type {string} */ source) {
      const end = source.indexOf("\n\n");
      return (end < 0 ? source : source.slice(0, end)).match(/(^|\n)(\$\$|\\\[)/)?.index;
    },
    tokenizer(/** @type {string} */ source) {
      const found = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/.exec(source);
      return found ? { type: "math", raw: found[0], text: (found[1] ?? found[2]).trim(), display: true } : undefined;
    },
  },
  {
    name: "inlineMath", level: "inline",
    start: (/** @type {string} */ source) => source.match(/\$|\\\(|\\\[/)?.index,
    tokenizer(/** @type {string} */ source) {
      const found = /^(?:\$\$([^\n]+?)\$\$|\$(?![\s$\d])((?:[^$\\\n]|\\.)+?)(?<!\s)\$(?!\d)|\\\(([^\n]+?)\\\)|\\\[([^\n]+?)\\\])/.exec(source);
      if (!found) return undefined;
      const display = found[1] !== undefined || found[4] !== undefined;
      return { type: "math", raw: found[0], text: (found[1] ?? found[2] ?? found[3] ?? found[4]).trim(), display };
    },
  },
];

const parser = new Marked({ gfm: true, breaks: false });
parser.use({ extensions: MATH });

/** @param {string} text @returns {Token[]} */
export function lex(text) {
  return /** @type {Token[]} */ (/** @type {unknown} */ (new Lexer(parser.defaults).lex(text)));
}

export class MarkdownDocument {
  given = "";
  hasReturns = false; // a carriage return occurred: all of the text is read for more of them
  generation = 1; // grows when closed blocks are no longer what they were
  text = "";
  /** @type {MarkdownBlock[]} */ closed = [];
  /** @type {MarkdownBlock[]} */ open = [];
  closedTo = 0;
  keys = 0;
  /** @type {{at: number, lang: string, end: RegExp, body: number} | null} */ fence = null;

  #reset() {
    Object.assign(this, new MarkdownDocument(), { generation: this.generation + 1 });
  }

  /**
   * Show this text. If it begins with the one before, only what follows the closed blocks is read.
   * @param {string} given @param {boolean} isOpen  whether more may follow
   */
  update(given, isOpen = false) {
    if (given === this.given && !(this.open.length && !isOpen && this.fence)) return this;
    if (!given.startsWith(this.given)) this.#reset();
    this.hasReturns ||= given.includes("\r", this.given.length);
    const text = this.hasReturns ? given.replace(/\r\n?/g, "\n") : given;
    if (text !== given && !text.startsWith(this.text)) this.#reset();
    this.given = given;
    this.text = text;
    if (this.fence && isOpen && this.#growFence()) return this;
    this.fence = null;
    this.#read(isOpen);
    return this;
  }

  /** @param {boolean} isOpen */
  #read(isOpen) {
    const tail = this.text.slice(this.closedTo);
    if (tail.length > PLAIN_CHARS && !tail.slice(0, PLAIN_CHARS).includes("\n")) {
      const end = tail.indexOf("\n\n");
      if (end < 0) return this.#setOpen([{ type: "plain", raw: tail, text: tail }]);
    }
    const tokens = lex(tail);
    let last = tokens.length - 1;
    while (last > 0 && ["space", "def"].includes(tokens[last].type)) last -= 1;
    for (const token of tokens.slice(0, Math.max(last, 0))) this.#close(token);
    const rest = tokens.slice(Math.max(last, 0));
    const head = rest[0];
    const found = isOpen && head?.type === "code" ? FENCE.exec(this.text.slice(this.closedTo)) : null;
    if (found && !endOf(found[1]).test(this.text.slice(this.closedTo + found[0].length - 1))) {
      this.fence = {
        at: this.closedTo, lang: head.lang ?? "", end: endOf(found[1]), body: this.closedTo + found[0].length,
      };
    }
    this.#setOpen(rest);
  }

  /** @param {Token} token */
  #close(token) {
    const block = { key: this.keys++, at: this.closedTo, token };
    this.closedTo += token.raw.length;
    if (token.type !== "space" && token.type !== "def") this.closed.push(block);
  }

  /** @param {Token[]} tokens */
  #setOpen(tokens) {
    let at = this.closedTo;
    this.open = [];
    tokens.forEach((token, number) => {
      if (!["space", "def"].includes(token.type)) this.open.push({ key: this.keys + number, at, token });
      at += token.raw.length;
    });
  }

  /** A code block is open: its text is what follows the fence. Gives false when it has ended. */
  #growFence() {
    const { at, lang, end, body } = /** @type {NonNullable<typeof this.fence>} */ (this.fence);
    const tail = this.text.slice(Math.max(body - 1, this.text.length - 4096)); // the end of a fence is near the end
    if (end.test(tail) && end.test(this.text.slice(body - 1))) return false;
    const raw = this.text.slice(at);
    const text = this.text.slice(body).replace(/\n$/, "");
    this.open = [{ key: this.keys, at, token: { type: "code", raw, lang, text, open: true } }];
    return true;
  }

  /** @returns {MarkdownBlock[]} */
  get blocks() {
    return this.slice(0, this.closed.length + this.open.length);
  }

  /** @param {number} from @param {number} to @returns {MarkdownBlock[]} */
  slice(from, to) {
    const count = this.closed.length;
    return [...this.closed.slice(from, to), ...this.open.slice(Math.max(0, from - count), Math.max(0, to - count))];
  }
}

/** @param {string} fence */
function endOf(fence) {
  return new RegExp(`\\n {0,3}${fence[0] === "~" ? "~" : "`"}{${fence.length},}[ \\t]*(\\n|$)`);
}

/** The address if a click on it can do no harm, else null. @param {string | null | undefined} href */
export function safeLink(href) {
  const text = (href ?? "").trim();
  // eslint-disable-next-line no-control-regex
  if (/[\u0000-\u001f]/.test(text)) return null;
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:", "tel:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** A picture inside the text itself: nothing is fetched for it. @param {string} href */
export function inlineImage(href) {
  return /^data:image\/(png|jpeg|gif|webp);base64,[a-z0-9+/=]+$/i.test(href) ? href : null;
}

/** @type {Record<string, string>} */
const ENTITIES = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—",
  ndash: "–", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", bull: "•", middot: "·", times: "×", deg: "°", euro: "€", larr: "←",
  rarr: "→", uarr: "↑", darr: "↓", harr: "↔", le: "≤", ge: "≥", ne: "≠", plusmn: "±", para: "¶", sect: "§", laquo: "«", raquo: "»",
};

/** Markdown allows character references in text. @param {string} text */
export function decodeEntities(text) {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|(\w{2,10}));/gi, (whole, decimal, hex, name) => {
    if (name) return ENTITIES[name] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : "\ufffd";
  });
}
