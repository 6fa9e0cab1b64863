// Preact with tagged templates: `html` makes elements, `memo` skips a component whose properties did not change.

import htm from "../vendor/htm.mjs";
import * as hooks from "../vendor/hooks.mjs";
import * as preact from "../vendor/preact.mjs";

/** @typedef {object} Drawn  what `html` makes */
/** @typedef {Drawn | string | number | boolean | null | undefined} Child */
/** @template {Element} [T=HTMLInputElement] @typedef {Event & {currentTarget: T}} On  an event of such an element */
/**
 * The vendored files carry no types; this is what the page uses of them.
 * @typedef {object} Library
 * @property {new <P extends object>(props: P) => {props: P}} Component
 * @property {(type: unknown, props: object | null, ...children: Child[]) => Drawn} h
 * @property {(drawn: Drawn, place: Element) => void} render
 * @property {(effect: () => void | (() => void), inputs?: readonly unknown[]) => void} useEffect
 * @property {(effect: () => void | (() => void), inputs?: readonly unknown[]) => void} useLayoutEffect
 * @property {<T>(value: T) => {current: T}} useRef
 * @property {<T>(value: T) => [T, (next: T | ((before: T) => T)) => void]} useState
 */

const library = /** @type {Library} */ (/** @type {unknown} */ ({ ...preact, ...hooks }));
const { Component, h } = library;
export const { render, useEffect, useLayoutEffect, useRef, useState } = library;
/** @type {(strings: TemplateStringsArray, ...values: unknown[]) => Drawn} */
export const html = htm.bind(h);

/** @param {Record<string, unknown>} a @param {Record<string, unknown>} b */
function isSame(a, b) {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name]);
}

/** A component that is drawn again only if a property is another value. @template {Record<string, unknown>} P @param {(props: P) => Child} draw @returns {(props: P) => Child} */
export function memo(draw) {
  /** @extends {Component<P>} */
  class Memo extends Component {
    /** @param {P} next */
    shouldComponentUpdate(next) {
      return !isSame(this.props, next);
    }
    render() {
      return h(draw, this.props);
    }
  }
  return /** @type {(props: P) => Child} */ (/** @type {unknown} */ (Memo));
}
