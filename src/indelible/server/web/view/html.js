// Preact with tagged templates: `html` makes elements, `memo` skips a component whose properties did not change.

import htm from "../vendor/htm.mjs";
import { Component, Fragment, h, render } from "../vendor/preact.mjs";

export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.mjs";
export { Component, Fragment, h, render };
export const html = htm.bind(h);

/** @param {Record<string, any>} a @param {Record<string, any>} b */
function isSame(a, b) {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name]);
}

/** A component that is drawn again only if a property is another value. @param {(props: any) => any} draw @returns {any} */
export function memo(draw) {
  return class extends Component {
    /** @param {any} next */
    shouldComponentUpdate(next) {
      return !isSame(this.props, next);
    }
    render() {
      return h(draw, this.props);
    }
  };
}
