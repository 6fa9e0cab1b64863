// The session has ended: a bar says so, and a dialog asks to log in again. view/session.js says what happens then.

import { describe } from "../core/api.js";
import { html, useState } from "./html.js";
import { Modal } from "./modal.js";
import { session, show, state, toasts } from "./page.js";

/** @import { On } from "./html.js" */

export function SessionBar() {
  if (!state.isLoggedOut) return null;
  return html`<div class="session-over" role="alert"><p>Your session has ended. Nothing is lost: log in to continue here.</p>
    <button type="button" class="primary" onClick=${() => show({ kind: "login" })}>Log in</button></div>`;
}

/** @param {{typed?: string}} props */
export function LogIn({ typed = "" }) {
  const [token, setToken] = useState(typed);
  const [problem, setProblem] = useState("");
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await session.logIn(token.trim());
      show(null);
    } catch (error) {
      setProblem(error instanceof TypeError ? "The server is unreachable. Try again in a moment." : describe(error));
    }
  };
  const { singleSignOn } = session;
  const leave = () => { if (token) toasts.show("You are not logged in.", () => show({ kind: "login", typed: token })); }; // a secret: it is kept nowhere
  return html`<${Modal} label="Log in again" onLeave=${leave}><form onSubmit=${submit}>
    ${singleSignOn && html`<p><a class="button primary" href=${singleSignOn}>Continue with single sign-on</a></p>`}
    <label class="field">Token <input type="password" autocomplete="current-password" spellcheck="false" required value=${token}
      onInput=${(/** @type {On} */ { currentTarget }) => setToken(currentTarget.value)} /></label>
    <p class="faint"><code>indelible token create</code> makes a token.</p>
    ${problem && html`<p role="alert" class="problem">${problem}</p>`}
    <div class="buttons"><button type="submit" class="primary">Log in</button></div>
  </form></${Modal}>`;
}
