// Following the end of the conversation: until the user scrolls up, and again when the user is back at the end.
//
// The first gesture upwards ends it, however small: a reply that grows in every frame would otherwise pull back whoever
// moves slowly. A wheel, a finger and a key are known before anything has moved, so they count at once. All the rest (the
// scroll bar, a screen reader) is seen by a position that is higher than the one where this page was last seen or put;
// what has only become shorter is still at its end.
//
// Must stay true (tests/e2e/test_page_scrolling.py): nobody who scrolls up is pulled back, by finger, wheel or key.

const NEAR_PX = 80;
const FINGER_PX = 6; // a finger that rests trembles
const KEYS_UP = ["ArrowUp", "PageUp", "Home"];

export class Following {
  is = true;
  top = 0; // where the box was last seen or put
  fingerY = 0;

  /** @param {HTMLElement} box */
  constructor(box) {
    this.box = box;
  }

  /** The pixels below what is in sight. */
  get left() {
    const { scrollHeight, scrollTop, clientHeight } = this.box;
    return scrollHeight - scrollTop - clientHeight;
  }

  /** Whether what is new is out of sight. */
  get isAway() {
    return !this.is && this.left >= NEAR_PX;
  }

  /** @param {number} top */
  moveTo(top) {
    this.box.scrollTop = top;
    this.top = this.box.scrollTop;
  }

  /** Stay at the end, if that is followed. */
  keepUp() {
    if (this.is) this.moveTo(this.box.scrollHeight);
  }

  noteScroll() {
    const { scrollTop } = this.box;
    if (scrollTop < this.top && this.left > 1) this.is = false;
    else if (scrollTop > this.top && this.left < NEAR_PX) this.is = true;
    this.top = scrollTop;
  }

  /** End following with the first gesture upwards. Gives a function that stops listening. */
  watchGestures() {
    const closing = new AbortController();
    const options = { passive: true, signal: closing.signal };
    const { box } = this;
    box.addEventListener("wheel", (event) => { if (event.deltaY < 0 && !event.ctrlKey) this.#noteGesture(event); }, options);
    box.addEventListener("keydown", (event) => {
      const isField = /** @type {HTMLElement} */ (event.target).matches("input, textarea, select");
      if (!isField && (KEYS_UP.includes(event.key) || (event.key === " " && event.shiftKey))) this.#noteGesture(event);
    }, options);
    box.addEventListener("touchstart", ({ touches }) => { this.fingerY = touches[0].clientY; }, options);
    box.addEventListener("touchmove", (event) => { if (event.touches.length === 1 && event.touches[0].clientY > this.fingerY + FINGER_PX) this.#noteGesture(event); }, options);
    return () => closing.abort();
  }

  /** Unless it moves something inside, such as a long result, or nothing at all. @param {Event} event */
  #noteGesture({ target }) {
    for (let place = /** @type {Element | null} */ (target); place; place = place === this.box ? null : place.parentElement) {
      if (place.scrollTop > 0) return void (this.is &&= place !== this.box);
    }
  }
}
