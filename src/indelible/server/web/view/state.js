// What the page shows, as plain data, and what follows from it. The parts of the page change it (view/page.js has them all).

import { newKey } from "../core/api.js";

/** @import { ChatState } from "../core/chat.js" */
/** @import { ChatRef, Model, SessionInfo } from "../core/shapes.js" */
/** @import { Store } from "../core/store.js" */
/** @import { Item } from "../core/thread.js" */
/** @import { Attachment } from "./attachments.js" */
/** @import { Edit } from "./messageactions.js" */

/**
 * @typedef {{kind: "rename", chat: ChatRef} | {kind: "share", chat: ChatRef} | {kind: "system", chat: {id: string} | null}
 *   | {kind: "debug", chat: {id: string}, item?: Item} | {kind: "settings"} | {kind: "help"} | {kind: "palette"} | {kind: "login", typed?: string}} Dialog
 * @typedef {{id: number, text: string, undo?: () => void}} Toast
 * @typedef {{state: "connecting" | "live" | "shared" | "reconnecting", retryAt?: number}} Connection
 */
/**
 * @typedef {object} PageState
 * @property {Set<string>} routes  of the server
 * @property {Model[]} models
 * @property {SessionInfo | null} session  who is logged in, if it is known
 * @property {boolean} isLoggedOut  the session has ended while the page is open
 * @property {string | null} sharedKey  of a link: the page is read-only
 * @property {string} place  the chat that is shown: an id, `new:…` for one that does not exist yet, or `gone`
 * @property {ChatState | null} chat
 * @property {Connection} connection  of its feed
 * @property {string | null} problem  instead of a chat
 * @property {string | null} target  the message to scroll to, or `end`
 * @property {boolean} isLoadingEarlier
 * @property {boolean} isEarlierBroken  loading earlier messages has failed: not again by itself
 * @property {string} draft  what is typed
 * @property {Map<string, Attachment[]>} attached  by the name of the draft
 * @property {Map<string, Edit>} edits  chat -> the message that is being edited there
 * @property {string | undefined} nextModel  of the chat that does not exist yet
 * @property {Dialog | null} dialog
 * @property {Toast[]} toasts
 * @property {boolean} isListOpen  on a phone
 * @property {string} announcement  for screen readers
 * @property {number} arrivals  how often the user has gone to a chat: the focus then goes to the message field
 */
/** The part of the state that somebody may read and change. @template {keyof PageState} K @typedef {Store<Pick<PageState, K>>} Slice */

/** @returns {PageState} */
export function makeState() {
  return {
    routes: new Set(), models: [], session: null, isLoggedOut: false, sharedKey: /\/shared\/([\w-]+)$/.exec(location.pathname)?.[1] ?? null,
    place: "new:0", chat: null, connection: { state: "connecting" }, problem: null, target: null, isLoadingEarlier: false, isEarlierBroken: false,
    draft: "", attached: new Map(), edits: new Map(), nextModel: undefined,
    dialog: null, toasts: [], isListOpen: false, announcement: "", arrivals: 0,
  };
}

/** A chat that does not exist yet. */
export function newPlace() {
  return `new:${newKey()}`;
}

/** Whether the server has it. @param {Pick<PageState, "routes">} state @param {string} route  such as "PUT /chats/{chat_id}/draft" */
export function has({ routes }, route) {
  return routes.has(route.replace(" /", " /api/v1/"));
}

/** @param {Pick<PageState, "sharedKey" | "chat">} state */
export function isReadOnly({ sharedKey, chat }) {
  return sharedKey !== null || chat?.details.read_only === true;
}

/** What is typed and attached belongs to this chat, or to the next new one. @param {Pick<PageState, "place">} state */
export function draftName({ place }) {
  return place.startsWith("new:") ? "new" : place;
}

/** The model that is used if none is chosen. @param {PageState} state */
export function standardModel({ models }) {
  return models.find((one) => one.default)?.id;
}

/** The model of the chat that is shown, or of the next new one. @param {PageState} state */
export function currentModel(state) {
  return (state.chat ? state.chat.details.model : state.nextModel) ?? standardModel(state);
}
