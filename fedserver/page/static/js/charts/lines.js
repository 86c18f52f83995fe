// Lines over the rounds of a run, with the values at a cursor that the mouse or the arrow keys move.

import { svg } from "../dom.js";
import { area, axes, linear, readout, spread, ticks } from "./frame.js";

const cursors = new WeakMap();

// series: [{name, tone, dash, points: [[x, y], ...]}], each sorted by x. marks: [[x, text]], vertical lines.
// text: of a value. floor, ceiling: what the axis never exceeds.
export function lines(container, width, { series, marks = [], text, unit, label, floor = -Infinity, ceiling = Infinity, height = 280 }) {
  const all = series.flatMap((one) => one.points);
  const xs = [...new Set(all.map(([x]) => x))].sort((a, b) => a - b);
  const labels = width > 460;
  const box = { left: 54, right: width - (labels ? 78 : 12), top: 26, bottom: height - 40 };
  const [low, high] = range(all.map(([, y]) => y), floor, ceiling);
  const x = linear(xs[0] - (xs.length > 1 ? 0 : 1), xs.at(-1) + (xs.length > 1 ? 0 : 1), box.left + 6, box.right - 6);
  const y = linear(low, high, box.bottom, box.top);
  const picture = area(container, width, height, label, { focusable: true });
  picture.append(
    axes(box, {
      x, y, yTitle: unit, xTitle: "round", yText: text, xText: String,
      xTicks: ticks(xs[0], xs.at(-1), Math.max(2, Math.floor(width / 90)), true),
      yTicks: ticks(low, high, 5),
    }),
    ...marks.map(([at, what]) =>
      svg("g", { class: "mark" }, svg("title", {}, what), svg("line", { x1: x(at), x2: x(at), y1: box.top, y2: box.bottom }))),
    ...series.map((one) => line(one, x, y)),
  );
  if (labels) picture.append(...ends(series, y, box));
  follow(container, picture, { series, xs, x, y, box, text, width });
}

function range(values, floor, ceiling) {
  let low = Math.min(...values), high = Math.max(...values);
  const pad = (high - low || Math.abs(high) * 0.1 || 1) * 0.08;
  low = Math.max(floor, low - pad);
  high = Math.min(ceiling, high + pad);
  return [low, high === low ? low + 1 : high];
}

function line({ tone, dash, points }, x, y) {
  const path = points.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const group = svg("g", { class: `line ${tone}` }, svg("path", { d: path, "stroke-dasharray": dash || null }));
  if (points.length <= 30) group.append(...points.map(([at, value]) => svg("circle", { cx: x(at), cy: y(value), r: 2.6 })));
  return group;
}

function ends(series, y, box) {
  const shown = series.filter((one) => one.points.length);
  const places = spread(shown.map((one) => y(one.points.at(-1)[1])), 14, box.top + 6, box.bottom - 4);
  return shown.map((one, index) =>
    svg("g", { class: `end ${one.tone}` },
      svg("circle", { cx: box.right + 10, cy: places[index], r: 4 }),
      svg("text", { x: box.right + 19, y: places[index], "dominant-baseline": "central" }, one.name.slice(0, 9))));
}

function follow(container, picture, { series, xs, x, y, box, text, width }) {
  const idle = "Point at the figure, or focus it and use the arrow keys, to read the values of a round.";
  const line = readout(container, idle);
  const rule = svg("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
  picture.append(rule);
  const show = (index) => {
    const at = xs[index];
    cursors.set(container, at);
    rule.setAttribute("x1", x(at));
    rule.setAttribute("x2", x(at));
    rule.setAttribute("visibility", "visible");
    const values = series.flatMap((one) => {
      const found = one.points.find(([point]) => point === at);
      return found ? [`${one.name} ${text(found[1])}`] : [];
    });
    line.textContent = `Round ${at}: ${values.join(" \u00b7 ")}`;
  };
  const nearest = (at) => xs.reduce((best, value, index) => (Math.abs(value - at) < Math.abs(xs[best] - at) ? index : best), 0);
  picture.onpointermove = (event) => {
    const scale = width / picture.getBoundingClientRect().width;
    const pixel = (event.clientX - picture.getBoundingClientRect().left) * scale;
    show(xs.reduce((best, value, index) => (Math.abs(x(value) - pixel) < Math.abs(x(xs[best]) - pixel) ? index : best), 0));
  };
  picture.onkeydown = (event) => {
    const now = cursors.has(container) ? nearest(cursors.get(container)) : xs.length;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: xs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(xs.length - 1, to)));
  };
  picture.onpointerleave = () => {
    cursors.delete(container);
    rule.setAttribute("visibility", "hidden");
    line.textContent = idle;
  };
  if (cursors.has(container)) show(nearest(cursors.get(container)));
}
