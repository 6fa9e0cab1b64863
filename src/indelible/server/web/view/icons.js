// Icons as inline SVG, 20 × 20, drawn with the text's colour. Their class (`ico`) belongs to nothing else on the page.

import { html } from "./html.js";

/** @type {Record<string, string>} */
const PATHS = {
  plus: "M10 4v12M4 10h12",
  search: "M9 3.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM13 13l4 4",
  send: "M10 16V4.5M5 9.5l5-5 5 5",
  stop: "M6 6h8v8H6z",
  copy: "M7.5 7.5h8v8h-8zM12.5 7.5v-3h-8v8h3",
  check: "M4 10.5l4 4 8-9",
  edit: "M4 16l1-4L13.5 3.5l3 3L8 15z",
  redo: "M15.5 10a5.5 5.5 0 1 1-1.6-3.9M15.5 3v4h-4",
  fork: "M5.5 3v6a3 3 0 0 0 3 3h3a3 3 0 0 1 3 3v2M5.5 9v8M3.5 15l2 2 2-2M12.5 15l2 2 2-2",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  down: "M10 4v11M5 10.5l5 5 5-5",
  steer: "M3.5 5.5c6 0 4 9 10.5 9M11 11.5l3.5 3-3.5 3M3.5 14.5h4",
  now: "M11 2.5L4.5 11.5h5l-1 6 7-9h-5z",
  chevron: "M6 8.5l4 4 4-4",
  up: "M10 16V5M5 9.5l5-5 5 5",
  close: "M5 5l10 10M15 5L5 15",
  more: "M4.4 10a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0M9.4 10a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0M14.4 10a.6.6 0 1 0 1.2 0 .6.6 0 1 0-1.2 0",
  menu: "M3 5.5h14M3 10h14M3 14.5h14",
  attach: "M15.5 9.5l-5.6 5.6a3.3 3.3 0 0 1-4.7-4.7l6-6a2.2 2.2 0 0 1 3.1 3.1l-5.9 6a1.1 1.1 0 0 1-1.6-1.6l5.2-5.2",
  tool: "M12.5 3.5a4 4 0 0 0-3.8 5.3L3.5 14 6 16.5l5.2-5.2a4 4 0 0 0 5.1-5.1l-2.5 2.5-2.2-.5-.5-2.2z",
  think: "M10 3a5 5 0 0 0-3 9v2.5h6V12a5 5 0 0 0-3-9zM8 17h4",
  warn: "M10 3.5l7.5 13h-15zM10 8.5v3.5M10 14.3v.01",
  pin: "M7 3.5h6l-1 5 2.5 3h-9l2.5-3zM10 11.5V17",
  sun: "M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1",
  moon: "M16 11.5A6.5 6.5 0 0 1 8.5 4a6.5 6.5 0 1 0 7.5 7.5z",
  gear: "M10 7.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6zM10 2.5v2M10 15.5v2M2.5 10h2M15.5 10h2M4.7 4.7l1.4 1.4M13.9 13.9l1.4 1.4M4.7 15.3l1.4-1.4M13.9 6.1l1.4-1.4",
  file: "M5.5 2.5h6l3.5 3.5v11.5h-9.5zM11.5 2.5V6H15",
  link: "M8.5 11.5l3-3M7 9L5 11a2.8 2.8 0 0 0 4 4l2-2M13 11l2-2a2.8 2.8 0 0 0-4-4L9 7",
  share: "M10 12V3M6.5 6L10 2.5 13.5 6M4.5 10v6.5h11V10",
  trash: "M4 5.5h12M8 5.5v-2h4v2M5.5 5.5l.7 11h7.6l.7-11",
  archive: "M3 4h14v3H3zM4.5 7v9h11V7M8 10.5h4",
  export: "M10 3v9M6.5 8.5L10 12l3.5-3.5M4 15.5h12",
  debug: "M3 10h3l2-5 4 10 2-5h3",
  spark: "M10 3l1.6 5.4L17 10l-5.4 1.6L10 17l-1.6-5.4L3 10l5.4-1.6z",
  keyboard: "M2.5 5.5h15v9h-15zM5.5 8.5h.01M8.5 8.5h.01M11.5 8.5h.01M14.5 8.5h.01M6.5 11.5h7",
};

/** @param {string} name */
export function icon(name) {
  return html`<svg class="ico" viewBox="0 0 20 20" aria-hidden="true" focusable="false"><path d=${PATHS[name]} /></svg>`;
}
