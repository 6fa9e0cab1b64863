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

import { html, useState } from "./html.js";
import { Modal } from "./modal.js";

const ROOT = new URL("../../", import.meta.url);
const MARK = "indelible:session";
export const USER = "indelible:user";

export class Session {
  /** @param {import("./controller.js").Controller} controller */
  constructor(controller) {
    this.controller = controller;
    /** @type {any} */ this.info = null;
    this.isOver = false;
  }

  get userName() {
    return this.info?.user?.name ?? null;
  }

  async start() {
    addEventListener("storage", ({ key }) => { if (key === MARK && this.isOver) void this.#resume(); });
    addEventListener("storage", ({ key, newValue }) => {
      if (key !== USER || newValue === this.controller.outbox.user) return;
      this.controller.outbox.isConfirmed = false;
      if (newValue !== null) void this.#resume();
    });
    await this.load();
  }

  async load() {
    if (!this.controller.routes.size) await this.controller.loadRoutes();
    if (!this.controller.routes.size) return; // the server is away: who this is stays as it was
    const before = this.userName;
    if (this.controller.has("GET /session")) {
      const info = await this.controller.api.getSession().catch(() => null);
      if (!info) return;
      this.info = info;
    }
    this.controller.setUser(this.userName ?? "");
    if (before === null || before === this.userName) return;
    history.replaceState(null, "", ROOT); // nothing here is theirs
    location.reload();
  }

  /** A request was refused: the session has ended. */
  noteEnd() {
    if (this.isOver || this.controller.sharedKey || !this.controller.has("POST /session")) return;
    this.isOver = true;
    this.controller.changed();
  }

  /** @param {string} token @returns {Promise<void>} */
  async logIn(token) {
    await this.controller.api.logIn(token);
    localStorage.setItem(MARK, String(Date.now()));
    await this.#resume();
  }

  async #resume() {
    this.isOver = false;
    this.controller.api.logins += 1;
    await this.load();
    this.controller.comeBack();
  }

  async logOut() {
    const { api, chats, drafts } = this.controller;
    drafts.flushAll();
    await chats.finishDeletions();
    const isOver = await this.controller.attempt(() => api.logOut().catch((/** @type {any} */ error) => { if (error.status !== 401) throw error; }).then(() => true));
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
    return this.info?.methods?.includes("oidc") ? this.#address("login/oidc") : null;
  }
}

/** @param {{c: import("./controller.js").Controller}} props */
export function SessionBar({ c }) {
  if (!c.session.isOver) return null;
  return html`<div class="session-over" role="alert"><p>Your session has ended. Nothing is lost: log in to continue here.</p>
    <button type="button" class="primary" onClick=${() => c.show({ kind: "login" })}>Log in</button></div>`;
}

/** @param {{c: import("./controller.js").Controller, typed?: string}} props */
export function LogIn({ c, typed = "" }) {
  const [token, setToken] = useState(typed);
  const [problem, setProblem] = useState("");
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await c.session.logIn(token.trim());
      c.show(null);
    } catch (error) {
      setProblem(error instanceof TypeError ? "The server is unreachable. Try again in a moment." : /** @type {Error} */ (error).message);
    }
  };
  const { singleSignOn } = c.session;
  const leave = () => { if (token) c.toast("You are not logged in.", () => c.show({ kind: "login", typed: token })); }; // a secret: it is kept nowhere
  return html`<${Modal} c=${c} label="Log in again" onLeave=${leave}><form onSubmit=${submit}>
    ${singleSignOn && html`<p><a class="button primary" href=${singleSignOn}>Continue with single sign-on</a></p>`}
    <label class="field">Token <input type="password" autocomplete="current-password" spellcheck="false" required value=${token}
      onInput=${(/** @type {any} */ { target }) => setToken(target.value)} /></label>
    <p class="faint"><code>indelible token create</code> makes a token.</p>
    ${problem && html`<p role="alert" class="problem">${problem}</p>`}
    <div class="buttons"><button type="submit" class="primary">Log in</button></div>
  </form></${Modal}>`;
}
