// Short messages that go by themselves: what was done, with Undo, and what went wrong.

import { describe, isLost } from "../core/api.js";

/** @import { Slice } from "./state.js" */

export const UNDO_MS = 6000;

export class Toasts {
  /** @param {Slice<"toasts">} store */
  constructor(store) {
    this.store = store;
  }

  /** @param {string} text @param {() => void} [undo] */
  show(text, undo) {
    const id = Math.random();
    this.store.set({ toasts: [...this.store.state.toasts, { id, text, undo }] });
    setTimeout(() => this.close(id), UNDO_MS);
  }

  /** @param {number} id */
  close(id) {
    this.store.set({ toasts: this.store.state.toasts.filter((toast) => toast.id !== id) });
  }

  /** @param {unknown} error */
  complain(error) {
    this.show(isLost(error) ? "The server is unreachable. Try again when it is back." : describe(error));
  }

  /** Do something; what goes wrong is said. @template T @param {() => Promise<T>} action @returns {Promise<T | undefined>} */
  async attempt(action) {
    try {
      return await action();
    } catch (error) {
      this.complain(error);
      return undefined;
    }
  }
}
