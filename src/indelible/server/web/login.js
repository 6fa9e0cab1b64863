// The login: exchanges a token for a cookie, then goes on to where the user wanted to go.
//
// The token may be in the fragment of the address (#token=…), which a browser sends to no server. It is cleared at once, so
// that it is not in the history either.

const BASE = new URL("..", import.meta.url).pathname.replace(/\/$/, "");
const form = /** @type {HTMLFormElement} */ (document.getElementById("login"));
const field = /** @type {HTMLInputElement} */ (document.getElementById("token"));
const problem = /** @type {HTMLElement} */ (document.getElementById("problem"));
const button = /** @type {HTMLButtonElement} */ (document.getElementById("submit"));
const oidc = /** @type {HTMLAnchorElement} */ (document.getElementById("oidc"));

// Only a path of this server: another site, or a script, could be in an address that somebody was sent.
function findNext() {
  const home = `${BASE}/`;
  const wanted = new URLSearchParams(location.search).get("next") ?? home;
  const target = new URL(wanted, location.origin);
  const isOurs = wanted.startsWith("/") && target.origin === location.origin && target.pathname.startsWith(home);
  return isOurs ? target.pathname + target.search + target.hash : home;
}

/** @param {string} sentence */
function show(sentence) {
  problem.textContent = sentence;
  problem.hidden = false;
  field.setAttribute("aria-invalid", "true");
  field.focus();
  field.select();
}

// What the user of the last visit has typed is not for whoever logs in now (view/session.js).
localStorage.removeItem("indelible:user");

/** @param {string} token */
async function logIn(token) {
  button.disabled = true;
  problem.hidden = true;
  field.removeAttribute("aria-invalid");
  try {
    const response = await fetch(`${BASE}/api/v1/session`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
    if (response.ok) {
      location.replace(findNext());
      return;
    }
    const problem = await response.json().catch(() => null);
    show(problem?.detail ?? `The server responded with status ${response.status}.`);
  } catch {
    show("The server is unreachable. Check that it is running, and try again.");
  }
  button.disabled = false;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const token = field.value.trim();
  if (token) logIn(token);
});

const inAddress = new URLSearchParams(location.hash.slice(1)).get("token");
if (location.hash) history.replaceState(null, "", location.pathname + location.search);
const failed = new URLSearchParams(location.search).get("problem");
if (failed) show(failed === "user" ? "You have logged in, but you are no user here. Ask an admin to add you." : "Logging in did not work. Try again.");

const methods = await fetch(`${BASE}/login/methods`).then((response) => response.json()).catch(() => ({}));
if (methods.oidc) {
  oidc.href = `${BASE}/login/oidc?next=${encodeURIComponent(findNext())}`;
  oidc.hidden = false;
}
if (inAddress) await logIn(inAddress);
