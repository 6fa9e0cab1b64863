// A file in a message or a result: its name, its size, and a small picture if it is one. The reader of a link opens it by
// the link's own address.

import { size } from "../core/formatting.js";
import { html } from "./html.js";
import { icon } from "./icons.js";
import { drawLink } from "./markdown.js";
import { api, state } from "./page.js";

/** @import { Block } from "../core/shapes.js" */

/** @param {{block: Block}} props */
export function FileCard({ block }) {
  const isImage = block.media_type?.startsWith("image/");
  const name = block.name ?? block.media_type ?? "file";
  const path = state.sharedKey ? `shared/${state.sharedKey}/files` : "files";
  const href = block.file_id ? api.url(`${path}/${block.file_id}`) : null;
  const data = isImage && block.data && /^image\/(png|jpeg|gif|webp)$/.test(block.media_type ?? "") ? `data:${block.media_type};base64,${block.data}` : null;
  const preview = isImage && href ? `${href}/preview` : data;
  const content = html`${preview ? html`<img src=${preview} alt=${name} loading="lazy" />` : icon("file")}<span dir="auto">${name}</span>${block.size ? html`<small>${size(block.size)}</small>` : ""}`;
  if (href) return html`<a class="file" href=${href} download=${name}>${content}</a>`;
  return block.url ? html`<span class="file">${drawLink(block.url, content)}</span>` : html`<span class="file">${content}</span>`;
}
