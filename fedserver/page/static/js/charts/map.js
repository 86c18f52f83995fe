// A map of the devices: those that lie close together have data alike, as far as their uncertainty lets one say so.

import { svg } from "../dom.js";
import { tone } from "../palette.js";
import { area, spread } from "./frame.js";
import { shape } from "./shapes.js";
import { shortened } from "./strip.js";

const SURE = 2.4477; // the radius in standard deviations within which 95 % of a normal distribution in a plane lies

// points: [{device, cluster, x, y, xx, xy, yy}], the last three a covariance.
export function map(container, width, { points, label, height = 360 }) {
  const picture = area(container, width, height, label);
  const found = points.map((point) => ({ ...point, ...ellipse(point) }));
  const reach = found.map((point) => SURE * Math.min(point.major, 3 * typical(found)));
  const scale = Math.min(
    (width - 60) / (span(found.map((p) => p.x), reach) || 1),
    (height - 60) / (span(found.map((p) => p.y), reach) || 1),
  );
  const [cx, cy] = [middle(found.map((p) => p.x)), middle(found.map((p) => p.y))];
  const x = (value) => width / 2 + (value - cx) * scale;
  const y = (value) => height / 2 - (value - cy) * scale;
  for (const point of found) {
    const [rx, ry] = [SURE * point.major * scale, SURE * point.minor * scale];
    if (rx < 2 || rx > 4 * width) continue;
    picture.append(svg("ellipse", { class: `halo ${tone(point.cluster)}`, cx: x(point.x), cy: y(point.y), rx, ry: Math.max(ry, 0.5), transform: `rotate(${(-point.angle).toFixed(2)} ${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)})` }));
  }
  for (const point of found) {
    picture.append(svg("g", { class: `dot ${tone(point.cluster)}` }, svg("title", {}, `${point.device}, ${point.cluster || "no cluster"}`), shape(point.cluster, x(point.x), y(point.y), 5)));
  }
  if (found.length <= 24) {
    const right = found.map((point) => x(point.x) < width - 110);
    const places = spread(found.map((point) => y(point.y)), 13, 12, height - 12);
    found.forEach((point, index) =>
      picture.append(svg("text", { class: "point-name", x: x(point.x) + (right[index] ? 10 : -10), y: places[index], "text-anchor": right[index] ? "start" : "end", "dominant-baseline": "central" }, shortened(point.device, 14))));
  }
}

// The principal axes of a covariance: standard deviations, and the angle of the larger one in degrees.
export function ellipse({ xx, xy, yy }) {
  const mean = (xx + yy) / 2;
  const root = Math.hypot((xx - yy) / 2, xy);
  return { major: Math.sqrt(Math.max(0, mean + root)), minor: Math.sqrt(Math.max(0, mean - root)), angle: (90 / Math.PI) * Math.atan2(2 * xy, xx - yy) };
}

const typical = (found) => [...found].map((point) => point.major).sort((a, b) => a - b)[found.length >> 1];
const span = (values, reach) => Math.max(...values.map((v, i) => v + reach[i])) - Math.min(...values.map((v, i) => v - reach[i]));
const middle = (values) => (Math.max(...values) + Math.min(...values)) / 2;
