// Every device of a fleet as a dot, in groups. The dot's form says its state: full, open, or crossed.

import { svg } from "../dom.js";
import { tone } from "../palette.js";
import { area } from "./frame.js";
import { shortened } from "./strip.js";

// groups: [{name, devices: [{device, state, tone, title}]}].
export function dots(container, width, { groups, label }) {
  const total = groups.reduce((sum, group) => sum + group.devices.length, 0);
  const cell = total <= 60 ? 28 : total <= 400 ? 19 : total <= 2000 ? 12 : 8;
  const radius = cell * 0.34;
  const left = 4;
  const across = Math.max(1, Math.floor((width - 2 * left) / cell));
  let y = 4;
  const drawn = [];
  for (const group of groups) {
    if (groups.length > 1 || group.name) {
      drawn.push(svg("text", { class: "group-name", x: left, y: y + 14 }, shortened(group.name, 40)), svg("text", { class: "group-count", x: width - 4, y: y + 14, "text-anchor": "end" }, String(group.devices.length)));
      y += 24;
    }
    group.devices.forEach((device, index) => {
      const cx = left + (index % across) * cell + cell / 2;
      const cy = y + Math.floor(index / across) * cell + cell / 2;
      drawn.push(dot(device, cx, cy, radius));
    });
    y += Math.ceil(group.devices.length / across) * cell + 12;
  }
  area(container, width, Math.max(40, y), label).append(...drawn);
}

function dot({ state, cluster, title }, cx, cy, radius) {
  const group = svg("g", { class: `device ${state} ${tone(cluster)}` }, svg("title", {}, title), svg("circle", { cx, cy, r: radius }));
  if (state === "absent" || state === "expected") {
    const arm = radius * 0.55;
    group.append(svg("path", { d: `M${cx - arm} ${cy - arm}L${cx + arm} ${cy + arm}M${cx + arm} ${cy - arm}L${cx - arm} ${cy + arm}` }));
  }
  if (state === "working") group.append(svg("circle", { class: "pulse", cx, cy, r: radius * 1.35 }));
  return group;
}
