// Small charts of the last minutes: one line each, with a cursor.

import { byId, drawn, element, widthOf } from "./dom.js";

const USUAL_WIDTH = 320;
const HEIGHT = 110;
const LEFT = 4;
const TOP = 12;
const BOTTOM = 16;

// ``points``: [seconds ago, value or null], oldest first. ``top``: the least that the axis goes up to.
export function chart(id, title, points, { span, format, top = 0, unit = "" }) {
  const values = points.map(([, value]) => value).filter((value) => value !== null);
  const most = nice(Math.max(top, ...values, 0));
  const width = widthOf(id, USUAL_WIDTH);
  const x = (ago) => LEFT + (1 - ago / span) * (width - 2 * LEFT);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - BOTTOM - TOP);
  const latest = values.length ? format(values[values.length - 1]) : "–";
  const picture = drawn("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    role: "img",
    "aria-label": `${title}: ${latest}`,
  });
  for (const share of [0, 0.5, 1]) {
    const at = y(share * most);
    picture.append(drawn("line", { class: "grid", x1: LEFT, x2: width - LEFT, y1: at, y2: at }));
  }
  picture.append(
    drawn("text", { class: "axis", x: LEFT, y: TOP - 3 }, `${format(most)}${unit}`),
    drawn("text", { class: "axis", x: LEFT, y: HEIGHT - 4 }, `${Math.round(span / 60)} min ago`),
    drawn("text", { class: "axis", x: width - LEFT, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
  );
  for (const run of runs(points)) {
    const line = run.map(([ago, value]) => `${x(ago).toFixed(1)},${y(value).toFixed(1)}`);
    if (run.length === 1) {
      picture.append(drawn("circle", { class: "dot", cx: x(run[0][0]), cy: y(run[0][1]), r: 1.8 }));
      continue;
    }
    const floor = y(0).toFixed(1);
    const area = [`${x(run[0][0]).toFixed(1)},${floor}`, ...line, `${x(run[run.length - 1][0]).toFixed(1)},${floor}`];
    picture.append(drawn("polygon", { class: "area", points: area.join(" ") }));
    picture.append(drawn("polyline", { class: "series", points: line.join(" ") }));
  }
  const value = element("b", {}, `${latest}${values.length ? unit : ""}`);
  watch(picture, value, points.filter(([, one]) => one !== null), { x, format, unit, width, latest: value.textContent });
  byId(id).replaceChildren(element("figcaption", {}, title, value), picture);
}

function watch(picture, value, points, { x, format, unit, width, latest }) {
  const cursor = drawn("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  picture.append(cursor);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    let nearest = null;
    for (const point of points) {
      if (!nearest || Math.abs(x(point[0]) - at) < Math.abs(x(nearest[0]) - at)) nearest = point;
    }
    if (!nearest) return;
    cursor.setAttribute("x1", x(nearest[0]));
    cursor.setAttribute("x2", x(nearest[0]));
    cursor.setAttribute("visibility", "visible");
    value.textContent = `${format(nearest[1])}${unit}, ${Math.round(nearest[0])} s ago`;
  });
  picture.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    value.textContent = latest;
  });
}

function* runs(points) {
  let run = [];
  for (const point of points) {
    if (point[1] === null) {
      if (run.length) yield run;
      run = [];
    } else {
      run.push(point);
    }
  }
  if (run.length) yield run;
}

function nice(value) {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * unit).find((step) => step >= value * 0.999);
}
