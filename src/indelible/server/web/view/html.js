// Preact with tagged templates: `html` makes elements, `memo` skips a component whose properties did not change.

import htm from "../vendor/htm.mjs";
import * as hooks from "../vendor/hooks.mjs";
import * as preact from "../vendor/preact.mjs";

// The vendored files carry no types.
/** @type {any} */
const { Component, h } = preact;
/** @type {(drawn: any, place: Element) => void} */
export const render = preact.render;
/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
/** @type {(effect: () => void | (() => void), inputs?: any[]) => void} */
export const useEffect = hooks.useEffect;
/** @type {(effect: () => void | (() => void), inputs?: any[]) => void} */
export const useLayoutEffect = hooks.useLayoutEffect;
/** @type {<T>(value: T) => {current: T}} */
export const useRef = hooks.useRef;
/** @type {<T>(value: T) => [T, (next: T | ((before: T) => T)) => void]} */
export const useState = hooks.useState;

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
