// The state of a page as plain data. Actions change it with `set`, which asks for one drawing in the next frame, however
// many changes come before it; whoever draws only reads it.
//
// A running reply grows many times a second. Who has changed nothing else says so (`grown`): then only the conversation
// is drawn, if somebody draws it alone (`onGrow`).

/** @template {object} T */
export class Store {
  /** @param {T} state @param {(draw: () => void) => unknown} schedule  calls it in the next frame */
  constructor(state, schedule) {
    this.state = state;
    this.schedule = schedule;
    this.isAsked = false;
    this.isWhole = false; // more has changed than the running reply
    this.onDraw = () => {};
    /** @type {(() => void) | null} */ this.onGrow = null;
  }

  /** @param {Partial<T>} changes */
  set(changes) {
    Object.assign(this.state, changes);
    this.changed();
  }

  /** Something inside the state has changed. */
  changed() {
    this.isWhole = true;
    this.grown();
  }

  /** Nothing but the running reply has grown. */
  grown() {
    if (this.isAsked) return;
    this.isAsked = true;
    this.schedule(() => {
      const draw = (!this.isWhole && this.onGrow) || this.onDraw;
      this.isAsked = this.isWhole = false;
      draw();
    });
  }
}
