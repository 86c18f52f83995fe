// Which cluster each device was in, round by round: one row for each device, one column for each round.

import { svg } from "../dom.js";
import { tone } from "../palette.js";
import { area, axes, linear, ticks } from "./frame.js";

const NAMED = 48;

// rows: [{device, runs: [[from, to, cluster], ...]}]; marks: [[round, text, letter], ...]; last: the last round.
export function strip(container, width, { rows, marks, first, last, label }) {
  const named = rows.length <= NAMED && width > 420;
  const each = named ? 18 : Math.max(1, Math.min(8, 420 / rows.length));
  const gap = each > 4 ? 2 : 0;
  const top = marks.length ? 30 : 12;
  const height = top + rows.length * each + 40;
  const box = { left: named ? 124 : 12, right: width - 12, top, bottom: height - 38 };
  const x = linear(first, last + 1, box.left, box.right);
  const picture = area(container, width, height, label);
  picture.append(
    axes(box, { x: (value) => x(value + 0.5), y: () => 0, yTicks: [], xTicks: ticks(first, last, Math.max(2, Math.floor(width / 90)), true), xText: String, xTitle: "round" }),
  );
  rows.forEach((row, index) => {
    const at = box.top + index * each;
    const group = svg("g", {}, svg("title", {}, `${row.device}: ${row.runs.map(([from, to, cluster]) => `${cluster || "no cluster"} in rounds ${from} to ${to}`).join(", ")}`));
    for (const [from, to, cluster] of row.runs) {
      group.append(svg("rect", { class: `cell ${tone(cluster)}`, x: x(from), y: at, width: Math.max(0.5, x(to + 1) - x(from) - (gap && width / (last - first + 1) > 6 ? 1 : 0)), height: each - gap }));
      if (each >= 14 && x(to + 1) - x(from) > 30) {
        group.append(svg("text", { class: "cell-text", x: x(from) + 6, y: at + (each - gap) / 2, "dominant-baseline": "central" }, cluster.slice(0, 12)));
      }
    }
    if (named) group.append(svg("text", { class: "row-name", x: box.left - 8, y: at + (each - gap) / 2, "text-anchor": "end", "dominant-baseline": "central" }, shortened(row.device)));
    picture.append(group);
  });
  for (const [round, text, word] of marks) {
    picture.append(
      svg("g", { class: "mark" }, svg("title", {}, `Round ${round}: ${text}`),
        svg("line", { x1: x(round), x2: x(round), y1: box.top - 6, y2: box.bottom }),
        marks.length <= 12 ? svg("text", { x: Math.min(Math.max(x(round), 30), width - 30), y: box.top - 12, "text-anchor": "middle" }, word) : null),
    );
  }
}

export const shortened = (text, most = 16) => (text.length > most ? `${text.slice(0, most - 1)}\u2026` : text);
