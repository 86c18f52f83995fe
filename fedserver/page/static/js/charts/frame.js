// What the figures share: scales, axes, and a drawing area that keeps the keyboard's focus when it is drawn again.

import { html, svg } from "../dom.js";

export const linear = (from, to, start, end) => (value) => start + ((value - from) / (to - from || 1)) * (end - start);

// Round numbers from about `low` to about `high`; whole ones if `whole`.
export function ticks(low, high, about = 5, whole = false) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / about));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => span / size <= about) ?? 10 * power;
  const stride = whole ? Math.max(1, Math.round(step)) : step;
  const found = [];
  for (let at = Math.ceil(low / stride - 1e-9) * stride; at <= high + stride * 1e-9; at += stride) found.push(Number(at.toPrecision(12)));
  return found;
}

// The SVG of a container, empty, `width` by `height` pixels. label: what a screen reader says of the figure.
export function area(container, width, height, label, { focusable = false } = {}) {
  let picture = container.querySelector("svg");
  if (!picture) {
    picture = svg("svg", { role: "img" });
    container.prepend(picture);
  }
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  picture.setAttribute("aria-label", label);
  if (focusable) picture.setAttribute("tabindex", "0");
  picture.replaceChildren();
  return picture;
}

// The line of text under a figure that says what is at the cursor.
export function readout(container, idle) {
  let line = container.querySelector(".readout");
  if (!line) {
    line = html("p", { class: "readout", role: "status" }, idle);
    container.append(line);
  }
  return line;
}

// Both axes with a grid; x and y: functions to pixels.
export function axes(box, { x, y, xTicks, yTicks, xText, yText, xTitle, yTitle }) {
  const { left, right, top, bottom } = box;
  const group = svg("g", { class: "axes" });
  for (const value of yTicks) {
    const at = Math.round(y(value)) + 0.5;
    group.append(
      svg("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }),
      svg("text", { x: left - 8, y: at, "text-anchor": "end", "dominant-baseline": "central" }, yText(value)),
    );
  }
  for (const value of xTicks) group.append(svg("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, xText(value)));
  group.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom + 0.5, y2: bottom + 0.5 }));
  if (xTitle) group.append(svg("text", { class: "axis-title", x: right, y: bottom + 32, "text-anchor": "end" }, xTitle));
  if (yTitle) group.append(svg("text", { class: "axis-title", x: left, y: top - 10, "text-anchor": "start" }, yTitle));
  return group;
}

// Positions near the wanted ones, sorted as they are, at least `gap` apart and within [top, bottom].
export function spread(wanted, gap, top, bottom) {
  const order = wanted.map((at, index) => [at, index]).sort((a, b) => a[0] - b[0]);
  const found = [];
  let least = top;
  for (const [at, index] of order) {
    found[index] = Math.max(at, least);
    least = found[index] + gap;
  }
  let most = bottom;
  for (const [, index] of [...order].reverse()) {
    found[index] = Math.min(found[index], most);
    most = found[index] - gap;
  }
  return found;
}
