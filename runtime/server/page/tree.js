// The radix tree as bars: tokens run to the right, and what is shared is as high as all that
// goes on from it.

import { byId, drawn, number, widthOf } from "./dom.js";

const USUAL_WIDTH = 900;
const ROW = 18;
const GAP = 2;

function linked(nodes) {
  const tree = nodes.map(([parent, tokens, hits, locks, age, children]) => ({
    parent, tokens, hits, locks, age, children, below: [], start: 0, left: 0, rows: 0, top: 0,
  }));
  tree.forEach((node, index) => {
    node.index = index;
    const parent = tree[node.parent];
    if (!parent) return;
    parent.below.push(node);
    node.start = parent.start + parent.tokens;
    node.left = parent.left + width(parent);
  });
  for (const node of [...tree].reverse()) {
    node.rows = node.below.reduce((total, child) => total + child.rows, 0) || 1;
  }
  let top = 0;
  for (const node of tree) {
    if (node.parent < 0) {
      node.top = top;
      top += node.rows;
    }
    let next = node.top;
    for (const child of node.below) {
      child.top = next;
      next += child.rows;
    }
  }
  return { tree, rows: top };
}

// A node of ten thousand tokens is not a thousand times as wide as one of ten.
function width(node) {
  return node.tokens ? 1 + Math.log2(1 + node.tokens) : 0;
}

function heat(hits, most) {
  if (hits <= 1) return hits;
  return Math.min(4, 2 + Math.floor((2.999 * Math.log(hits)) / Math.log(Math.max(most, 3))));
}

function told(node) {
  const parts = [
    `${number(node.tokens)} tokens, positions ${number(node.start)} to ${number(node.start + node.tokens)}`,
    `${number(node.hits)} prompts went through here`,
    `${node.children ? number(node.children) : "no"} continuations`,
  ];
  if (node.locks) parts.push(`read by ${number(node.locks)} running`);
  parts.push(node.age ? `last used ${number(node.age)} uses of the tree ago` : "just used");
  return parts.join("; ");
}

export function showTree(outline) {
  const shared = outline.nodes.filter(([, tokens, , , , children]) => tokens && children > 1).length;
  byId("tree-summary").textContent =
    `${number(outline.num_tokens)} of ${number(outline.capacity)} tokens cached in ${number(outline.num_nodes)} nodes; ` +
    `${number(outline.num_locked_tokens)} read by running requests. ` +
    `Shown: the ${number(outline.nodes.length)} nodes of this key used last, ${number(shared)} of them with branches.`;
  const { tree, rows } = linked(outline.nodes);
  const widest = Math.max(...tree.map((node) => node.left + width(node)), 1);
  const most = Math.max(...tree.map((node) => node.hits), 1);
  const whole = widthOf("tree", USUAL_WIDTH);
  const scale = whole / widest;
  const height = Math.max(rows * ROW, ROW);
  const picture = drawn("svg", {
    viewBox: `0 0 ${whole} ${height}`,
    role: "img",
    "aria-label": byId("tree-summary").textContent,
  });
  for (const node of tree) {
    if (!node.tokens) continue;
    const wide = width(node) * scale;
    const place = { x: node.left * scale, y: node.top * ROW, width: Math.max(wide - GAP, 1), height: node.rows * ROW - GAP };
    const kind = `node heat-${heat(node.hits, most)}${node.locks ? " locked" : ""}`;
    const bar = drawn("rect", { class: kind, rx: 3, ...place }, drawn("title", {}, told(node)));
    bar.addEventListener("pointerenter", () => {
      byId("tree-detail").textContent = told(node);
    });
    picture.append(bar);
    if (wide > 28) {
      const at = { class: "node-text", x: place.x + 5, y: place.y + Math.min(place.height / 2, 60) + 3.5 };
      picture.append(drawn("text", at, number(node.tokens)));
    }
  }
  byId("tree").replaceChildren(picture);
}
