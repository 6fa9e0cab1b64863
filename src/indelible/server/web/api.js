// The server's HTTP API: one function per route that the page uses.

const BASE = new URL("..", import.meta.url).pathname.replace(/\/$/, ""); // a proxy may serve us under a path
const PREFIX = `${BASE}/api/v1`;

export class Problem extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? `The server responded with status ${status}.`);
    this.status = status;
    this.kind = problem?.kind;
  }
}

async function request(method, path, body, headers = {}) {
  const given = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } };
  const response = await fetch(PREFIX + path, { method, ...given });
  if (response.status === 401) location.assign(`${BASE}/login?next=${encodeURIComponent(location.pathname + location.hash)}`);
  if (!response.ok) throw new Problem(response.status, await response.json().catch(() => null));
  return response.status === 204 ? null : response.json();
}

// A message without a response may have arrived. It is sent again under the same idempotency key, so it is stored once.
async function requestOnce(path, body) {
  const headers = { "Idempotency-Key": crypto.randomUUID() };
  for (let tries = 0; ; tries += 1) {
    try {
      return await request("POST", path, body, headers);
    } catch (error) {
      const lost = error instanceof TypeError || error.status === 503;
      if (!lost || tries === 5) throw error;
      await new Promise((wake) => setTimeout(wake, 300 * 2 ** tries));
    }
  }
}

export const listChats = () => request("GET", "/chats?limit=100");
export const createChat = (message) => requestOnce("/chats", { message });
export const sendMessage = (id, text) => requestOnce(`/chats/${id}/messages`, { text });
export const interrupt = (id, turn) => request("POST", `/chats/${id}/interrupt`, { turn });
export const retry = (id) => request("POST", `/chats/${id}/retry`, {});
export const continueReply = (id) => request("POST", `/chats/${id}/continue`, {});
export const deleteQueued = (id, queuedId) => request("DELETE", `/chats/${id}/queue/${queuedId}`);
export const readChat = (id) => request("GET", `/chats/${id}`);
export const openFeed = (id, cursor) =>
  new EventSource(`${PREFIX}/chats/${id}/events${cursor ? `?after=${encodeURIComponent(cursor)}` : ""}`);
