// What the user chose for this browser: theme, send key, notifications. Other tabs follow.

const coarse = matchMedia("(pointer: coarse)");
export const isPhone = () => coarse.matches && innerWidth < 700;

const NAME = "indelible:preferences";
const DEFAULTS = { theme: "system", sendKey: "enter", notify: false };

export class Preferences {
  /** @param {() => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    this.theme = DEFAULTS.theme;
    this.sendKey = DEFAULTS.sendKey;
    this.notify = DEFAULTS.notify;
    this.#read();
    addEventListener("storage", ({ key }) => { if (key === NAME) this.#read(); });
  }

  #read() {
    try {
      Object.assign(this, DEFAULTS, JSON.parse(localStorage.getItem(NAME) ?? "{}"));
    } catch {
      Object.assign(this, DEFAULTS);
    }
    this.#apply();
  }

  /** @param {Partial<typeof DEFAULTS>} changes */
  set(changes) {
    Object.assign(this, changes);
    localStorage.setItem(NAME, JSON.stringify({ theme: this.theme, sendKey: this.sendKey, notify: this.notify }));
    this.#apply();
  }

  /** Whether this key sends what is in a field. @param {KeyboardEvent} event */
  sends(event) {
    if (event.key !== "Enter" || event.isComposing) return false;
    return event.ctrlKey || event.metaKey || (this.sendKey === "enter" && !event.shiftKey && !isPhone());
  }

  #apply() {
    document.documentElement.dataset.theme = this.theme;
    this.onChange();
  }
}
