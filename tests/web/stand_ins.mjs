// What a browser gives to the core, small enough to be moved by hand: storage, timers, locks, channels, connections.

export class MemoryStorage {
  #items = new Map();
  get length() { return this.#items.size; }
  key(at) { return [...this.#items.keys()][at] ?? null; }
  getItem(name) { return this.#items.get(name) ?? null; }
  setItem(name, value) { this.#items.set(name, String(value)); }
  removeItem(name) { this.#items.delete(name); }
}

/** Timers that ring when the test says so. */
export class Timers {
  waiting = new Map();
  #last = 0;
  set = (wake) => (this.waiting.set((this.#last += 1), wake), this.#last);
  clear = (timer) => this.waiting.delete(timer);
  ring() {
    const due = [...this.waiting.values()];
    this.waiting.clear();
    for (const wake of due) wake();
  }
}

/** An EventSource whose server is the test. */
export class Source {
  #listeners = {};
  closed = false;
  constructor(cursor) { this.cursor = cursor; }
  addEventListener(kind, listener) { this.#listeners[kind] = listener; }
  close() { this.closed = true; }
  send(kind, data, cursor) {
    if (!this.closed) this.#listeners[kind]({ data: JSON.stringify(data), lastEventId: cursor });
  }
  lose() { this.onerror({}); }
}

/** Web Locks of one browser. */
export class Locks {
  held = new Map();
  queue = [];
  async query() { return { held: [...this.held.values()], pending: this.queue.map(({ name }) => ({ name })) }; }
  request(name, options, work) {
    if (typeof options === "function") [options, work] = [{}, options];
    return new Promise((resolve, reject) => {
      const wish = { name, work, resolve, reject };
      if (options.ifAvailable && this.held.has(name)) return resolve(work(null));
      options.signal?.addEventListener("abort", () => {
        if (!this.queue.includes(wish)) return;
        this.queue.splice(this.queue.indexOf(wish), 1);
        reject(new DOMException("aborted", "AbortError"));
      });
      this.queue.push(wish);
      this.#grant();
    });
  }
  #grant() {
    for (const wish of [...this.queue]) {
      if (this.held.has(wish.name)) continue;
      this.queue.splice(this.queue.indexOf(wish), 1);
      const lock = { name: wish.name };
      this.held.set(wish.name, lock);
      Promise.resolve(lock).then(wish.work).then(wish.resolve, wish.reject).finally(() => {
        this.held.delete(wish.name);
        this.#grant();
      });
    }
  }
}

/** Channels that deliver in order, a moment later, to all others of the same name. */
export function makeChannels() {
  const open = new Set();
  return (name) => {
    const channel = {
      name, onmessage: null,
      postMessage(data) {
        const copy = structuredClone(data);
        for (const other of open) if (other !== channel && other.name === name) queueMicrotask(() => open.has(other) && other.onmessage?.({ data: copy }));
      },
      close: () => open.delete(channel),
    };
    open.add(channel);
    return channel;
  };
}

/** Let everything that is due happen. */
export async function settle() {
  for (let turn = 0; turn < 50; turn += 1) await null;
  await new Promise((wake) => setImmediate(wake));
}

export function message(id, role, text, more = {}) {
  return {
    id, role, parent_id: null, partial: false, reason: null, continues: null, model: null, usage: null, cost_usd: null,
    timings: null, created_at: "2026-01-01T12:00:00Z", blocks: text === null ? [] : [{ type: "text", text }], ...more,
  };
}

export function snapshot(messages, more = {}) {
  return { id: "chat_1", status: "idle", turn: null, error: null, retry: null, action: null, queue: [], live: null, messages, has_more: false, title: null, ...more };
}
