// A tool call as a card: what was asked, how far it is, what came back, and whether anybody knows. Files of the result
// stand below the card, in sight though it is folded.

import { outcomeOf } from "../core/thread.js";
import { duration, shorten } from "../core/formatting.js";
import { CopyButton } from "./codeblock.js";
import { FileCard } from "./filecard.js";
import { html, memo, useState } from "./html.js";
import { icon } from "./icons.js";

/** @import { Block } from "../core/shapes.js" */

const SHORT_LINES = 10;

/** @param {unknown} value */
function write(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2) ?? "";
  try {
    const parsed = JSON.parse(value);
    return typeof parsed === "object" && parsed !== null ? JSON.stringify(parsed, null, 2) : value;
  } catch {
    return value;
  }
}

/** The arguments in a few words. @param {string | undefined} text */
function summarize(text) {
  try {
    const parsed = JSON.parse(text || "{}");
    if (parsed === null || typeof parsed !== "object") return String(parsed);
    return shorten(Object.values(parsed).map((value) => (typeof value === "object" ? JSON.stringify(value) : String(value))).join(", "), 60);
  } catch {
    return shorten(text ?? "", 60);
  }
}

/** @type {Record<string, [string, string]>} */
const SETTLED = { ran: ["done", "Ran"], failed: ["failed", "Failed"], not_run: ["cut", "Not run"], unknown: ["unknown", "Outcome unknown"] };

/** What a call whose outcome is unknown went through. @type {Record<string, string>} */
const UNKNOWN = {
  interrupted: "The reply was stopped while this tool was running.",
  timed_out: "This tool took too long, and was ended.",
  lost: "The server stopped while this tool was running, and did not run it again.",
};

/** @param {Block} call @param {Block | undefined} result @param {boolean} isLive @returns {[string, string]} */
export function stateOf(call, result, isLive) {
  if (result) return SETTLED[outcomeOf(result)];
  if (!isLive) return ["cut", "no result"];
  return call.started ? ["running", "running"] : ["writing", "preparing"];
}

/** @typedef {{call: Block, result?: Block, live: boolean, progress?: string, args?: string, started?: boolean}} CardProps  what of the call grows is given apart */

export const ToolCard = memo((/** @type {CardProps} */ { call, result, live, progress, args, started }) => {
  const [isWhole, setWhole] = useState(false);
  const [state, words] = stateOf({ ...call, started }, result, live);
  const output = result ? write(result.output) : "";
  const lines = output.split("\n");
  const shown = isWhole ? output : lines.slice(0, SHORT_LINES).join("\n");
  const ms = typeof result?.duration_s === "number" ? 1000 * result.duration_s : null;
  const last = progress?.trim().split("\n").at(-1);
  return html`<details class=${`tool call ${state}`}>
    <summary>
      ${icon(state === "unknown" || state === "failed" ? "warn" : "tool")}
      <span class="tool-name">${call.name || "tool"}</span>
      <span class="tool-gist" dir="auto">${state === "running" && last ? last : summarize(args)}</span>
      <span class="tool-state">${state === "done" && icon("check")}${words}${state === "done" && ms !== null && ` · ${duration(ms)}`}</span>
    </summary>
    <div class="tool-body">
      ${state === "unknown" && html`<p class="amber">${UNKNOWN[result?.reason ?? ""] ?? ""} It may or may not have taken effect.</p>`}
      ${args && html`<h4>Arguments</h4><pre tabindex="0" dir="ltr">${write(args)}</pre>`}
      ${progress && html`<h4>Progress</h4><pre tabindex="0">${progress}</pre>`}
      ${result && html`<h4>${state === "failed" ? "Error" : "Result"} <${CopyButton} text=${output} label="Copy result" /></h4><pre tabindex="0">${shown}</pre>
        ${lines.length > SHORT_LINES && html`<button type="button" class="link" onClick=${() => setWhole(!isWhole)}>${isWhole ? "Show less" : `Show all ${lines.length} lines`}</button>`}`}
    </div>
  </details>
  ${Boolean(result?.files?.length) && html`<div class="tool-files">${result?.files?.map((block) => html`<${FileCard} block=${block} />`)}</div>`}`;
});
