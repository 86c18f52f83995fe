// Horizontal bars, one for each row, with its value as a number; or two dots joined by a line, to compare two values.

import { svg } from "../dom.js";
import { area, linear } from "./frame.js";
import { shortened } from "./strip.js";

const ROW = 24;
export const MOST = 40;

// rows: [{name, value, tone, text}], longest first; value may be null, then only the text is shown. full: the value of a
// bar over the whole width, by default that of the longest.
export function bars(container, width, { rows, label, full = null }) {
  const shown = rows.slice(0, MOST);
  const named = width < 420 ? 92 : 132;
  const height = shown.length * ROW + 8;
  const most = full ?? Math.max(...shown.map((row) => row.value ?? 0), 1e-12);
  const x = linear(0, most, named, width - 96);
  const picture = area(container, width, height, label);
  shown.forEach((row, index) => {
    const y = 4 + index * ROW;
    picture.append(
      svg("text", { class: "row-name", x: named - 10, y: y + ROW / 2, "text-anchor": "end", "dominant-baseline": "central" }, shortened(row.name, width < 420 ? 11 : 16)),
      svg("rect", { class: "track", x: named, y: y + 6, width: width - 96 - named, height: ROW - 12, rx: 2 }),
      row.value === null ? "" : svg("rect", { class: `bar ${row.tone}`, x: named, y: y + 6, width: Math.max(2, x(row.value) - named), height: ROW - 12, rx: 2 }),
      svg("text", { class: "value", x: width - 4, y: y + ROW / 2, "text-anchor": "end", "dominant-baseline": "central" }, row.text),
    );
  });
}

// rows: [{name, from, to, tone, text}]; text: of the difference. format: of a value on the axis.
export function pairs(container, width, { rows, label, format, names }) {
  const shown = rows.slice(0, MOST);
  const named = width < 420 ? 92 : 132;
  const height = shown.length * ROW + 34;
  const values = shown.flatMap((row) => [row.from, row.to]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = linear(low, high === low ? low + 1 : high, named + 10, width - 110);
  const picture = area(container, width, height, label);
  shown.forEach((row, index) => {
    const y = 4 + index * ROW + ROW / 2;
    picture.append(
      svg("text", { class: "row-name", x: named - 10, y, "text-anchor": "end", "dominant-baseline": "central" }, shortened(row.name, width < 420 ? 11 : 16)),
      svg("line", { class: "grid", x1: named, x2: width - 100, y1: y, y2: y }),
      svg("line", { class: `join ${row.tone}`, x1: x(row.from), x2: x(row.to), y1: y, y2: y }),
      svg("g", { class: "dot tone-none" }, svg("title", {}, `${names[0]}: ${format(row.from)}`), svg("circle", { cx: x(row.from), cy: y, r: 4.5 })),
      svg("g", { class: `dot ${row.tone}` }, svg("title", {}, `${names[1]}: ${format(row.to)}`), svg("circle", { cx: x(row.to), cy: y, r: 5.5 })),
      svg("text", { class: "value", x: width - 4, y, "text-anchor": "end", "dominant-baseline": "central" }, row.text),
    );
  });
  const bottom = height - 10;
  picture.append(
    svg("text", { x: x(low), y: bottom, "text-anchor": "start" }, format(low)),
    svg("text", { x: x(high), y: bottom, "text-anchor": "end" }, high === low ? "" : format(high)),
  );
}
