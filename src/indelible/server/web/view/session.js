// Who is logged in, and what happens when the session ends while the page is open.
//
// The page stays: a bar asks to log in again, and nothing that was typed, sent or read is lost. Until then no request is
// repeated; after it the feed continues at its cursor and the outbox is sent. All tabs of the browser hear of it.
//
// What one user has typed or left in the outbox is neither shown to another nor sent in their name (core/drafts.js,
// core/outbox.js). The browser keeps it for the next login of its user. `USER` names the user of the last visit, so that a
// reload shows a draft at once; a logout and the login page (login.js) remove it. A tab that sees it change sends nothing
// before it has asked the server again.
//
// Must stay true (tests/e2e/test_login.py): two users of one browser see nothing of each other; a reply that runs while the session ends is shown without a gap afterwards.

import { statusOf } from "../core/api.js";
import { has } from "./state.js";

/** @import { Api } from "../core/api.js" */
/** @import { Drafts } from "../core/drafts.js" */
/** @import { Outbox } from "../core/outbox.js" */
/** @import { ChatActions } from "./chatactions.js" */
/** @import { Slice } from "./state.js" */
/** @import { Toasts } from "./toasts.js" */

export const ROOT = new URL("../../", import.meta.url);
const MARK = "indelible:session";
export const USER = "indelible:user";

export class Session {
  /**
   * @param {{store: Slice<"session" | "isLoggedOut" | "routes" | "sharedKey">, api: Api, toasts: Toasts, drafts: Drafts, outbox: Outbox,
   *   chats: Pick<ChatActions, "finishDeletions">, loadRoutes: () => Promise<void>, setUser: (name: string) => void, comeBack: () => void}} parts
   */
  constructor({ store, api, toasts, drafts, outbox, chats, loadRoutes, setUser, comeBack }) {
    this.store = store;
    this.api = api;
    this.toasts = toasts;
    this.drafts = drafts;
    this.outbox = outbox;
    this.chats = chats;
    this.loadRoutes = loadRoutes;
    this.setUser = setUser;
    this.comeBack = comeBack;
  }

  get userName() {
    return this.store.state.session?.user?.name ?? null;
  }

  async start() {
    addEventListener("storage", ({ key }) => { if (key === MARK && this.store.state.isLoggedOut) void this.#resume(); });
    addEventListener("storage", ({ key, newValue }) => {
      if (key !== USER || newValue === this.outbox.user) return;
      this.outbox.isConfirmed = false;
      if (newValue !== null) void this.#resume();
    });
    await this.load();
  }

  async load() {
    const { state } = this.store;
    if (!state.routes.size) await this.loadRoutes();
    if (!state.routes.size) return; // the server is away: who this is stays as it was
    const before = this.userName;
    if (has(state, "GET /session")) {
      const info = await this.api.getSession().catch(() => null);
      if (!info) return;
      state.session = info;
    }
    this.setUser(this.userName ?? "");
    if (before === null || before === this.userName) return;
    history.replaceState(null, "", ROOT); // nothing here is theirs
    location.reload();
  }

  /** A request was refused: the session has ended. */
  noteEnd() {
    const { state } = this.store;
    if (!state.isLoggedOut && !state.sharedKey && has(state, "POST /session")) this.store.set({ isLoggedOut: true });
  }

  /** @param {string} token @returns {Promise<void>} */
  async logIn(token) {
    await this.api.logIn(token);
    localStorage.setItem(MARK, String(Date.now()));
    await this.#resume();
  }

  async #resume() {
    this.store.state.isLoggedOut = false;
    this.api.logins += 1;
    await this.load();
    this.comeBack();
  }

  async logOut() {
    this.drafts.flushAll();
    await this.chats.finishDeletions();
    const isOver = await this.toasts.attempt(() => this.api.logOut().catch((error) => { if (statusOf(error) !== 401) throw error; }).then(() => true));
    if (!isOver) return; // still logged in, and the user knows
    localStorage.removeItem(USER);
    location.assign(this.#address("login"));
  }

  /** @param {string} path */
  #address(path) {
    const next = location.pathname + location.search + location.hash;
    return new URL(`${path}?next=${encodeURIComponent(next)}`, ROOT).href;
  }

  /** Where another service logs the user in, if the server has one. */
  get singleSignOn() {
    return this.store.state.session?.methods?.includes("oidc") ? this.#address("login/oidc") : null;
  }
}
