// Speaking to the server: one function per route that the page needs.

const PREFIX = "/api/v1";

export class Problem extends Error {
  constructor(status, problem) {
    super(problem?.detail ?? `The server answered ${status}.`);
    this.status = status;
    this.kind = problem?.kind;
  }
}

async function ask(method, path, body, headers = {}) {
  const given = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } };
  const response = await fetch(PREFIX + path, { method, ...given });
  if (!response.ok) throw new Problem(response.status, await response.json().catch(() => null));
  return response.status === 204 ? null : response.json();
}

// A send that got no answer may have arrived: it is repeated under the same key, and so sent once.
async function askOnce(path, body) {
  const headers = { "Idempotency-Key": crypto.randomUUID() };
  for (let tries = 0; ; tries += 1) {
    try {
      return await ask("POST", path, body, headers);
    } catch (error) {
      const lost = error instanceof TypeError || error.status === 503;
      if (!lost || tries === 5) throw error;
      await new Promise((wake) => setTimeout(wake, 300 * 2 ** tries));
    }
  }
}

export const listChats = () => ask("GET", "/chats?limit=100");
export const createChat = (message) => askOnce("/chats", { message });
export const sendMessage = (id, text) => askOnce(`/chats/${id}/messages`, { text });
export const interrupt = (id, turn) => ask("POST", `/chats/${id}/interrupt`, { turn });
export const retry = (id) => ask("POST", `/chats/${id}/retry`, {});
export const goOn = (id) => ask("POST", `/chats/${id}/continue`, {});
export const deleteQueued = (id, queuedId) => ask("DELETE", `/chats/${id}/queue/${queuedId}`);
export const readChat = (id) => ask("GET", `/chats/${id}`);
export const openFeed = (id, cursor) =>
  new EventSource(`${PREFIX}/chats/${id}/events${cursor ? `?after=${encodeURIComponent(cursor)}` : ""}`);
