// Numbers, times and names as the page writes them.

/** @param {number} ms */
export function duration(ms) {
  if (ms < 950) return `${Math.max(0.1, Math.round(ms / 100) / 10)} s`;
  if (ms < 9_950) return `${(ms / 1000).toFixed(1).replace(/\.0$/, "")} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${seconds % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {string | null | undefined} from @param {string | null | undefined} to */
export function elapsed(from, to) {
  return from && to ? Date.parse(to) - Date.parse(from) : null;
}

/** @param {number} usd */
export function cost(usd) {
  return usd >= 0.1 ? `$${usd.toFixed(2)}` : usd >= 0.0005 ? `$${usd.toFixed(3)}` : "< $0.001";
}

/** @param {number} count */
export function tokens(count) {
  return count >= 10_000 ? `${(count / 1000).toFixed(1)}k tokens` : `${count.toLocaleString("en")} ${count === 1 ? "token" : "tokens"}`;
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

// Made once: `toLocaleTimeString` makes a formatter each time, which cost 0.4 s for 2,000 messages.
const CLOCK = new Intl.DateTimeFormat([], { hour: "numeric", minute: "2-digit" });

/** @param {string} iso */
export function clockTime(iso) {
  return CLOCK.format(new Date(iso));
}

/** The heading under which a chat is listed. @param {string} iso @param {Date} now */
export function dayGroup(iso, now = new Date()) {
  const day = (/** @type {Date} */ date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  const then = new Date(iso);
  const days = Math.round((day(now) - day(then)) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Previous 7 days";
  if (days < 30) return "Previous 30 days";
  return then.toLocaleDateString("en", { month: "long", year: "numeric" });
}

/** @template {{pinned?: boolean, updated_at: string}} T @param {T[]} chats @param {Date} [now] @returns {{name: string, chats: T[]}[]} */
export function groupChats(chats, now = new Date()) {
  /** @type {{name: string, chats: T[]}[]} */
  const groups = [];
  for (const chat of chats) {
    const name = chat.pinned ? "Pinned" : dayGroup(chat.updated_at, now);
    const known = groups.find((group) => group.name === name);
    if (known) known.chats.push(chat);
    else groups.push({ name, chats: [chat] });
  }
  return groups;
}

/** The first words of a text, on one line. @param {string} text @param {number} longest */
export function shorten(text, longest = 60) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > longest ? `${line.slice(0, longest).trimEnd()}…` : line;
}
