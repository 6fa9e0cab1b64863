// The server's HTTP API: one function per route that the page uses.
//
// Every request has a time limit, and every write may carry an idempotency key: repeated after a lost response, it is
// carried out once. The address of the API follows from the address of this module, so a server behind a path prefix
// (`/chat/`) works unchanged. A route that this server does not have is a `Problem` with status 404 or 405: the page
// then hides what depends on it.

/**
 * @import { Attempt, ChatSummary, Delivered, Details, Message, Model, NewChat, NewMessage, Page, Run, SessionInfo, Share, StoredFile, WholeRun } from "./shapes.js"
 */

export const TIMEOUT_MS = 30_000;

const GATEWAY = [502, 503, 504]; // a proxy's answer for a server that is away, or the server's own as it leaves

/** A random key. Over plain http (another machine's address) a browser has no `crypto.randomUUID`. */
export function newKey() {
  return crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Half a character, which a cut paste may end with, is no valid JSON for the server. @param {string} _ @param {unknown} value */
function wellFormed(_, value) {
  return typeof value === "string" ? value.toWellFormed() : value;
}

export class Problem extends Error {
  /** @param {number} status @param {{detail?: string, kind?: string} | null} problem */
  constructor(status, problem) {
    super(problem?.detail ?? `The server responded with status ${status}.`);
    this.status = status;
    this.kind = problem?.kind;
  }
}

/** The status of the server's refusal; 0 if it is none. @param {unknown} error */
export function statusOf(error) {
  return error instanceof Problem ? error.status : 0;
}

/** What went wrong, for people. @param {unknown} error */
export function describe(error) {
  return error instanceof Error ? error.message : String(error);
}

/** Whether the request never got a response: it may have been carried out. @param {unknown} error */
export function isLost(error) {
  if (error instanceof Problem) return [408, 425, 502, 503, 504].includes(error.status);
  return error instanceof TypeError || (error instanceof DOMException && ["TimeoutError", "AbortError"].includes(error.name));
}

/** Whether this server does not have the route. @param {unknown} error */
export function isMissing(error) {
  return [404, 405, 501].includes(statusOf(error));
}

/**
 * @typedef {object} RequestOptions
 * @property {object} [body]
 * @property {string} [key]  idempotency key
 * @property {BodyInit} [raw]
 * @property {number} [timeoutMs]
 * @property {boolean} [keepalive]
 */

export class Api {
  /** @param {string | URL} base  ends with `/api/v1/` @param {typeof globalThis.fetch} [send] */
  constructor(base, send = globalThis.fetch.bind(globalThis)) {
    this.base = new URL(base);
    this.fetch = send;
    /** @type {() => void} */
    this.onUnauthorized = () => {};
    this.logins = 0; // a 401 to a request from before the last login says nothing of this session
    this.isAway = false; // the server, when it was last asked
    /** @type {(isThere: boolean) => void} */
    this.onReach = () => {}; // that has changed
  }

  /** @param {boolean} isThere */
  noteServer(isThere) {
    if (this.isAway === !isThere) return;
    this.isAway = !isThere;
    this.onReach(isThere);
  }

  /** @param {string} path */
  url(path) {
    return new URL(path, this.base).href;
  }

  /** @template T @param {string} method @param {string} path @param {RequestOptions} options @returns {Promise<T>} */
  async request(method, path, { body, key, raw, timeoutMs = TIMEOUT_MS, keepalive = false } = {}) {
    /** @type {Record<string, string>} */
    const headers = {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (key) headers["Idempotency-Key"] = key;
    const { logins } = this;
    const response = await this.fetch(this.url(path), {
      method, headers, keepalive, credentials: "same-origin",
      body: raw ?? (body === undefined ? undefined : JSON.stringify(body, wellFormed)),
      signal: AbortSignal.timeout(timeoutMs),
    }).catch((error) => {
      this.noteServer(false);
      throw error;
    });
    this.noteServer(!GATEWAY.includes(response.status));
    if (!response.ok) {
      if (response.status === 401 && logins === this.logins && !(method === "POST" && path === "session")) this.onUnauthorized();
      throw new Problem(response.status, await response.json().catch(() => null));
    }
    return response.status === 204 ? /** @type {T} */ (null) : response.json();
  }

  /** @template T @param {string} path @returns {Promise<T>} */
  get(path) {
    return this.request("GET", path);
  }

  /** @template T @param {string} path @param {object} [body] @param {string} [key] @returns {Promise<T>} */
  post(path, body = {}, key = newKey()) {
    return this.request("POST", path, { body, key });
  }

  /** @returns {Promise<Page<Model>>} */
  listModels = () => this.get("models");
  /** @returns {Promise<SessionInfo>} */
  getSession = () => this.get("session");
  /** @param {string} token @returns {Promise<unknown>} */
  logIn = (token) => this.request("POST", "session", { body: { token } });
  /** @returns {Promise<unknown>} */
  logOut = () => this.request("DELETE", "session");

  /** @param {{q?: string, archived?: boolean, cursor?: string | null, limit?: number, shared?: boolean}} [query] @returns {Promise<Page<ChatSummary>>} */
  listChats({ q, archived, cursor, limit = 50, shared } = {}) {
    const query = new URLSearchParams({ limit: String(limit) });
    if (q) query.set("q", q);
    if (archived) query.set("archived", "true");
    if (shared) query.set("shared", "true");
    if (cursor) query.set("cursor", cursor);
    return this.get(`chats?${query}`);
  }

  /** @param {NewChat} body @param {string} key @returns {Promise<Delivered & {id: string}>} */
  createChat = (body, key) => this.post("chats", body, key);
  /** @param {string} id @returns {Promise<Details>} */
  getChat = (id) => this.get(`chats/${id}`);
  /** @param {string} id @param {Details} changes @returns {Promise<object>} */
  updateChat = (id, changes) => this.request("PATCH", `chats/${id}`, { body: changes, key: newKey() });
  /** @param {string} id @param {{keepalive?: boolean}} [options] @returns {Promise<unknown>} */
  deleteChat = (id, options) => this.request("DELETE", `chats/${id}`, options);
  /** @param {string} id @param {string} messageId @returns {Promise<{id: string}>} */
  forkChat = (id, messageId) => this.post(`chats/${id}/fork`, { message_id: messageId });
  /** @param {string} path  of a chat (`chats/…`) or a link (`shared/…`) @param {string | null} before @returns {Promise<Page<Message>>} */
  listMessages = (path, before) => this.get(`${path}/messages?limit=64${before ? `&before=${encodeURIComponent(before)}` : ""}`);
  /** @param {string} id @param {NewMessage} body @param {string} key @returns {Promise<Delivered>} */
  sendMessage = (id, body, key) => this.post(`chats/${id}/messages`, body, key);
  /** @param {string} id @param {string} messageId @param {NewMessage} body @returns {Promise<object>} */
  editMessage = (id, messageId, body) => this.post(`chats/${id}/messages/${messageId}/edit`, body);
  /** @param {string} id @param {string} messageId @param {string} [model] @returns {Promise<object>} */
  regenerate = (id, messageId, model) => this.post(`chats/${id}/messages/${messageId}/regenerate`, model ? { model } : {});
  /** @param {string} id @param {string} messageId @returns {Promise<object>} */
  switchBranch = (id, messageId) => this.post(`chats/${id}/branch`, { message_id: messageId });
  /** @param {string} id @param {string | null} turn @param {number} [wait_s]  for its end @returns {Promise<object>} */
  interrupt = (id, turn, wait_s) => this.post(`chats/${id}/interrupt`, { turn, wait_s });
  /** @param {string} id @param {string} [model] @returns {Promise<object>} */
  retry = (id, model) => this.post(`chats/${id}/retry`, model ? { model } : {});
  /** @param {string} id @returns {Promise<object>} */
  continueReply = (id) => this.post(`chats/${id}/continue`);
  /** @param {string} id @returns {Promise<object>} */
  compact = (id) => this.post(`chats/${id}/compact`);
  /** @param {string} id @param {{tool_call_id: string, output: string, is_error: boolean}[]} results @returns {Promise<object>} */
  submitToolResults = (id, results) => this.post(`chats/${id}/tool-results`, { results });

  /** @param {string} id @param {string} queuedId @returns {Promise<unknown>} */
  deleteQueued = (id, queuedId) => this.request("DELETE", `chats/${id}/queue/${queuedId}`);
  /** @param {string} id @param {string} queuedId @param {NewMessage} body @returns {Promise<object>} */
  editQueued = (id, queuedId, body) => this.request("PATCH", `chats/${id}/queue/${queuedId}`, { body });
  /** @param {string} id @param {string} queuedId @returns {Promise<object>} */
  promoteQueued = (id, queuedId) => this.post(`chats/${id}/queue/${queuedId}/promote`);
  /** @param {string} id @param {string[]} ids @returns {Promise<object>} */
  orderQueue = (id, ids) => this.request("PUT", `chats/${id}/queue/order`, { body: { ids } });

  /** @param {string} id @returns {Promise<{text: string}>} */
  getDraft = (id) => this.get(`chats/${id}/draft`);
  /** @param {string} id @param {string} text @returns {Promise<unknown>} */
  putDraft = (id, text) => this.request("PUT", `chats/${id}/draft`, { body: { text }, keepalive: true });
  /** @param {string} id @returns {Promise<unknown>} */
  markRead = (id) => this.post(`chats/${id}/read`, {});
  /** @param {string} id @returns {Promise<Page<Attempt>>} */
  listAttempts = (id) => this.get(`chats/${id}/attempts?limit=200`);
  /** @param {string} id @returns {Promise<Page<Run>>} */
  listRuns = (id) => this.get(`chats/${id}/debug/runs?limit=50`);
  /** @param {string} id @param {string} runId @returns {Promise<WholeRun>} */
  getRun = (id, runId) => this.get(`chats/${id}/debug/runs/${runId}`);
  /** @param {string} id @returns {Promise<Page<Share>>} */
  listShares = (id) => this.get(`chats/${id}/shares`);
  /** @param {string} id @returns {Promise<Share>} */
  createShare = (id) => this.post(`chats/${id}/shares`, { user: null });
  /** @param {string} id @param {string} shareId @returns {Promise<unknown>} */
  deleteShare = (id, shareId) => this.request("DELETE", `chats/${id}/shares/${shareId}`);
  /** @param {object} chat @returns {Promise<{id: string}>} */
  importChat = (chat) => this.post("chats/import", chat);
  /** @param {File} file @returns {Promise<StoredFile>} */
  uploadFile = (file) =>
    this.request("POST", `files?name=${encodeURIComponent(file.name ?? "file")}`, { raw: file, timeoutMs: 10 * 60_000, key: newKey() });
}
