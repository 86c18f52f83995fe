// The clusters of a run: which devices are in each, and how accurate its model is for them.

import { svg } from "../dom.js";
import { many, percent } from "../format.js";
import { tone } from "../palette.js";
import { area } from "./frame.js";
import { shape } from "./shapes.js";
import { shortened } from "./strip.js";

const NAMED = 60;

// clusters: [{key, members, accuracy}].
export function groups(container, width, { clusters, label }) {
  const total = clusters.reduce((sum, cluster) => sum + cluster.members.length, 0);
  const named = total <= NAMED;
  const [cell, line] = named ? [Math.max(112, Math.floor(width / Math.max(1, Math.floor(width / 128)))), 22] : [13, 13];
  const across = Math.max(1, Math.floor(width / cell));
  const drawn = [];
  let y = 6;
  for (const cluster of clusters) {
    drawn.push(
      svg("g", { class: `dot ${tone(cluster.key)}` }, shape(cluster.key, 10, y + 12, 7)),
      svg("text", { class: "group-name", x: 26, y: y + 12, "dominant-baseline": "central" }, shortened(cluster.key, 24)),
      svg("text", { class: "group-count", x: 26 + Math.min(24, cluster.key.length) * 9 + 10, y: y + 12, "dominant-baseline": "central" }, many(cluster.members.length, "device")),
      svg("text", { class: "value large", x: width - 4, y: y + 12, "text-anchor": "end", "dominant-baseline": "central" }, percent(cluster.accuracy)),
    );
    y += 28;
    cluster.members.forEach((member, index) => {
      const x = (index % across) * cell;
      const at = y + Math.floor(index / across) * line + line / 2;
      drawn.push(named
        ? svg("text", { class: "member", x: x + 26, y: at, "dominant-baseline": "central" }, svg("title", {}, member), shortened(member, 15))
        : svg("g", { class: `dot ${tone(cluster.key)}` }, svg("title", {}, member), shape(cluster.key, x + 10, at, 4)));
    });
    y += Math.ceil(cluster.members.length / across) * line + 12;
    drawn.push(svg("line", { class: "grid", x1: 0, x2: width, y1: y - 4.5, y2: y - 4.5 }));
    y += 4;
  }
  drawn.pop();
  area(container, width, y, label).append(...drawn);
}
