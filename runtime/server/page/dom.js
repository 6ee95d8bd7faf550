// Elements are made here. Text only ever becomes text: nothing is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

// How wide an element is drawn, so that a picture in it has text of one size on every screen.
export function widthOf(id, otherwise) {
  return byId(id).clientWidth || otherwise;
}

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });

export function number(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  return value >= 1e4 ? `${(value / 1e3).toFixed(1)}k` : whole.format(value);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${whole.format(value * 1000)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

export function percent(value) {
  return `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)}%`;
}
