// Markdown in pieces is the Markdown of the whole, and no link or picture of it is dangerous.

import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeEntities, inlineImage, lex, MarkdownDocument, safeLink } from "../../src/indelible/server/web/core/markdown.js";

const TEXT = `# Rain

It *rains* in **Oslo**, see \`code\` & [a link](https://example.org).
Second line  
hard break

- one
- two

  with a paragraph

1. first
   - nested

| a | b |
|---|:-:|
| 1 | 2 |

\`\`\`python
def rain():

    return "# not a heading"
\`\`\`

> quoted
> twice

$$
x^2 + y^2
$$

Inline $a_1$ costs $5 and $6.

~~~
\`\`\`
still code
~~~

Setext
======

---

<div onclick="x">html</div>

- [ ] task
- [x] done

The end`;

const strip = (tokens) => JSON.stringify(tokens.filter(({ type }) => !["space", "def"].includes(type)).map(({ raw, ...rest }) => ({ ...rest, open: undefined, raw: raw.trimEnd() })));
const read = (document) => strip(document.blocks.map(({ token }) => token));

test("fed in any pieces, the blocks of a text are the same", () => {
  const whole = strip(lex(TEXT));
  for (const step of [1, 2, 3, 7, 50, 10_000]) {
    const document = new MarkdownDocument();
    for (let end = step; end < TEXT.length; end += step) document.update(TEXT.slice(0, end), true);
    document.update(TEXT, true);
    document.update(TEXT, false);
    assert.equal(read(document), whole, `pieces of ${step}`);
    assert.equal(document.generation, 1);
  }
});

test("closed blocks are not read again, and keep their places in the text", () => {
  const document = new MarkdownDocument();
  document.update("One.\n\nTwo.\n\nThr", true);
  const [first] = document.blocks;
  document.update("One.\n\nTwo.\n\nThree", true);
  assert.equal(document.blocks[0], first);
  assert.deepEqual(document.blocks.map(({ at }) => at), [0, 6, 12]);
});

test("an open code block is code from its first character on, and ends where it ends", () => {
  const document = new MarkdownDocument();
  document.update("```js\nlet a", true);
  document.update("```js\nlet a = 1;\n<script>", true);
  assert.deepEqual(document.blocks.map(({ token }) => [token.type, token.lang, token.text]), [["code", "js", "let a = 1;\n<script>"]]);
  document.update("```js\nlet a = 1;\n```\nText", true);
  assert.deepEqual(document.blocks.map(({ token }) => token.type), ["code", "paragraph"]);
});

test("a text that is replaced starts over", () => {
  const document = new MarkdownDocument();
  document.update("One\n\ntwo", true);
  document.update("Other\r\nline", false);
  assert.equal(document.generation, 2);
  assert.equal(document.text, "Other\nline");
});

test("a paragraph without an end is plain text instead of a stall", () => {
  const document = new MarkdownDocument();
  document.update("word ".repeat(10_000), true);
  assert.deepEqual(document.blocks.map(({ token }) => token.type), ["plain"]);
  document.update(`${"word ".repeat(10_000)}\n\nNext`, true);
  assert.equal(document.blocks.at(-1).token.text, "Next");
});

test("only harmless addresses are links", () => {
  for (const bad of ["javascript:alert(1)", " JavaScript:alert(1)", "java\nscript:1", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "/relative", "//host", "#x", "", null, "blob:x"]) {
    assert.equal(safeLink(bad), null, String(bad));
  }
  for (const good of ["https://example.org/a?b#c", "http://example.org/", "mailto:a@b.c", "tel:+123"]) assert.equal(safeLink(good), good);
});

test("only pictures inside the text are pictures", () => {
  assert.equal(inlineImage("https://evil/x.png"), null);
  assert.equal(inlineImage("data:image/svg+xml;base64,AA=="), null);
  assert.equal(inlineImage("data:image/png;base64,AA=="), "data:image/png;base64,AA==");
});

test("character references are decoded once", () => {
  assert.equal(decodeEntities("&lt;b&gt; &amp;lt; &#65; &#x42; &nope; &#0;"), "<b> &lt; A B &nope; \ufffd");
});

test("two megabytes of paragraphs are read once each, not again and again", () => {
  const text = "It **rains** in `Bergen`, on two hundred days.\n\n".repeat(40_000);
  const document = new MarkdownDocument();
  for (let end = 100_000; end < text.length; end += 100_000) document.update(text.slice(0, end), true);
  document.update(text, false);
  assert.equal(document.blocks.length, 40_000);
});
