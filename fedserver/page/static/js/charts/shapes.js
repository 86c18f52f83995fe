// A shape for each cluster, beside its color: circle, square, diamond, triangles, cross, hexagon, ring.

import { svg } from "../dom.js";
import { isOne, place } from "../palette.js";

const OUTLINES = [
  null,
  [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  [[0, 1.2], [1.1, -0.8], [-1.1, -0.8]],
  [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2], [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
  [[-1.1, 0], [-0.55, -0.95], [0.55, -0.95], [1.1, 0], [0.55, 0.95], [-0.55, 0.95]],
  [[-1.2, -0.5], [1.2, -0.5], [1.2, 0.5], [-1.2, 0.5]],
];

export function shape(cluster, x, y, radius) {
  const outline = !isOne(cluster) ? OUTLINES[place(cluster) % OUTLINES.length] : null;
  if (!outline) return svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: radius });
  return svg("polygon", { points: outline.map(([dx, dy]) => `${(x + radius * dx).toFixed(1)},${(y + radius * dy).toFixed(1)}`).join(" ") });
}
