// The server's HTTP API: one function per route that the page uses.
//
// Every request has a time limit, and every write may carry an idempotency key: repeated after a lost response, it is
// carried out once. The address of the API follows from the address of this module, so a server behind a path prefix
// (`/chat/`) works unchanged. A route that this server does not have is a `Problem` with status 404 or 405: the page
// then hides what depends on it.

export const TIMEOUT_MS = 30_000;

const GATEWAY = [502, 503, 504]; // a proxy's answer for a server that is away, or the server's own as it leaves

/** A random key. Over plain http (another machine's address) a browser has no `crypto.randomUUID`. */
export function newKey() {
  return crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Problem extends Error {
  /** @param {number} status @param {any} problem */
  constructor(status, problem) {
    super(problem?.detail ?? `The server responded with status ${status}.`);
    this.status = status;
    /** @type {string | undefined} */
    this.kind = problem?.kind;
    this.body = problem;
  }
}

/** Whether the request never got a response: it may have been carried out. @param {any} error */
export function isLost(error) {
  if (error instanceof Problem) return [408, 425, 502, 503, 504].includes(error.status);
  return error instanceof TypeError || error?.name === "TimeoutError" || error?.name === "AbortError";
}

/** Whether this server does not have the route. @param {any} error */
export function isMissing(error) {
  return error instanceof Problem && [404, 405, 501].includes(error.status);
}

/**
 * @typedef {object} RequestOptions
 * @property {any} [body]
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

  /** @param {string} method @param {string} path @param {RequestOptions} options @returns {Promise<any>} */
  async request(method, path, { body, key, raw, timeoutMs = TIMEOUT_MS, keepalive = false } = {}) {
    /** @type {Record<string, string>} */
    const headers = {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (key) headers["Idempotency-Key"] = key;
    const { logins } = this;
    const response = await this.fetch(this.url(path), {
      method, headers, keepalive, credentials: "same-origin",
      body: raw ?? (body === undefined ? undefined : JSON.stringify(body)),
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
    return response.status === 204 ? null : response.json();
  }

  /** @param {string} path */
  get(path) {
    return this.request("GET", path);
  }

  /** @param {string} path @param {any} [body] @param {string} [key] */
  post(path, body = {}, key = newKey()) {
    return this.request("POST", path, { body, key });
  }

  listModels = () => this.get("models");
  getSession = () => this.get("session");
  /** @param {string} token */
  logIn = (token) => this.request("POST", "session", { body: { token } });
  logOut = () => this.request("DELETE", "session");

  /** @param {{q?: string, archived?: boolean, cursor?: string | null, limit?: number, shared?: boolean}} [query] */
  listChats({ q, archived, cursor, limit = 50, shared } = {}) {
    const query = new URLSearchParams({ limit: String(limit) });
    if (q) query.set("q", q);
    if (archived) query.set("archived", "true");
    if (shared) query.set("shared", "true");
    if (cursor) query.set("cursor", cursor);
    return this.get(`chats?${query}`);
  }

  /** @param {any} body @param {string} key */
  createChat = (body, key) => this.post("chats", body, key);
  /** @param {string} id */
  getChat = (id) => this.get(`chats/${id}`);
  /** @param {string} id @param {any} changes */
  updateChat = (id, changes) => this.request("PATCH", `chats/${id}`, { body: changes, key: newKey() });
  /** @param {string} id */
  deleteChat = (id) => this.request("DELETE", `chats/${id}`);
  /** @param {string} id @param {string} messageId */
  forkChat = (id, messageId) => this.post(`chats/${id}/fork`, { message_id: messageId });
  /** @param {string} id @param {string | null} before @param {number} limit */
  listMessages = (id, before, limit = 64) =>
    this.get(`chats/${id}/messages?limit=${limit}${before ? `&before=${encodeURIComponent(before)}` : ""}`);
  /** @param {string} id @param {any} body @param {string} key */
  sendMessage = (id, body, key) => this.post(`chats/${id}/messages`, body, key);
  /** @param {string} id @param {string} messageId @param {any} body */
  editMessage = (id, messageId, body) => this.post(`chats/${id}/messages/${messageId}/edit`, body);
  /** @param {string} id @param {string} messageId @param {string} [model] */
  regenerate = (id, messageId, model) => this.post(`chats/${id}/messages/${messageId}/regenerate`, model ? { model } : {});
  /** @param {string} id @param {string} messageId */
  switchBranch = (id, messageId) => this.post(`chats/${id}/branch`, { message_id: messageId });
  /** @param {string} id @param {string | null} turn */
  interrupt = (id, turn) => this.post(`chats/${id}/interrupt`, turn ? { turn } : {});
  /** @param {string} id @param {string} [model] */
  retry = (id, model) => this.post(`chats/${id}/retry`, model ? { model } : {});
  /** @param {string} id @param {string} [model] */
  continueReply = (id, model) => this.post(`chats/${id}/continue`, model ? { model } : {});
  /** @param {string} id */
  compact = (id) => this.post(`chats/${id}/compact`);
  /** @param {string} id @param {any[]} results */
  submitToolResults = (id, results) => this.post(`chats/${id}/tool-results`, { results });

  /** @param {string} id @param {string} queuedId */
  deleteQueued = (id, queuedId) => this.request("DELETE", `chats/${id}/queue/${queuedId}`);
  /** @param {string} id @param {string} queuedId @param {any} body */
  editQueued = (id, queuedId, body) => this.request("PATCH", `chats/${id}/queue/${queuedId}`, { body });
  /** @param {string} id @param {string} queuedId */
  promoteQueued = (id, queuedId) => this.post(`chats/${id}/queue/${queuedId}/promote`);
  /** @param {string} id @param {string[]} ids */
  orderQueue = (id, ids) => this.request("PUT", `chats/${id}/queue/order`, { body: { ids } });

  /** @param {string} id */
  getDraft = (id) => this.get(`chats/${id}/draft`);
  /** @param {string} id @param {string} text */
  putDraft = (id, text) => this.request("PUT", `chats/${id}/draft`, { body: { text }, keepalive: true });
  /** @param {string} id */
  markRead = (id) => this.post(`chats/${id}/read`, {});
  /** @param {string} id */
  listAttempts = (id) => this.get(`chats/${id}/attempts?limit=200`);
  /** @param {string} id */
  listRuns = (id) => this.get(`chats/${id}/debug/runs?limit=50`);
  /** @param {string} id @param {string} runId */
  getRun = (id, runId) => this.get(`chats/${id}/debug/runs/${runId}`);
  /** @param {string} id */
  listShares = (id) => this.get(`chats/${id}/shares`);
  /** @param {string} id */
  createShare = (id) => this.post(`chats/${id}/shares`, { user: null });
  /** @param {string} id @param {string} shareId */
  deleteShare = (id, shareId) => this.request("DELETE", `chats/${id}/shares/${shareId}`);
  /** @param {any} chat */
  importChat = (chat) => this.post("chats/import", chat);
  /** @param {Blob & {name?: string}} file */
  uploadFile = (file) =>
    this.request("POST", `files?name=${encodeURIComponent(file.name ?? "file")}`, {
      raw: file, timeoutMs: 10 * 60_000, key: newKey(),
    });
}
