// What each device has released in a run, and at what cost. Where something left without a guarantee, that is said
// first: an epsilon of the rest protects nothing of it.

import { bars } from "../charts/bars.js";
import { decimal, many } from "../format.js";
import { order } from "../palette.js";
import { Panel } from "../panel.js";

const epsilon = (value) => (value === null ? "none" : decimal(value, 2));

export function privacy() {
  const panel = new Panel({
    title: "Privacy spent",
    about: "The epsilon of what each device released with a guarantee in this run, as far as it has arrived. The account that counts is the device's own.",
    columns: [
      { head: "Device", of: (row) => row.device, who: true },
      { head: "Epsilon", of: (row) => row.epsilon, text: epsilon, number: true },
      { head: "Epsilon, sample replaced", of: (row) => row.replaced, text: epsilon, number: true },
      { head: "Delta", of: (row) => row.delta, text: (value) => value.toExponential(0), number: true },
      { head: "Samples together", of: (row) => row.samples, number: true },
      { head: "Left without a guarantee", of: (row) => row.open.join(", ") },
    ],
  });
  return { panel, show: ({ run }) => {
    const found = [...run.privacy].sort((a, b) => (b.epsilon ?? 0) - (a.epsilon ?? 0) || order(a.device, b.device));
    const open = found.filter((row) => row.open.length);
    const paid = found.filter((row) => row.epsilon !== null);
    const what = [...new Set(open.flatMap((row) => row.open))].join(", ");
    const parts = [
      open.length ? `From ${many(open.length, "device")}, this left without a guarantee: ${what}.` : "",
      paid.length ? `The bars show what left with one${open.length ? ", and say nothing of the rest" : ""}.` : "",
      run.central ? `The server adds noise of its own: ${run.central}.` : "",
    ];
    panel.show({
      rows: () => found,
      empty: found.length ? "" : "Nothing about data has left a device in this run.",
      saying: parts.filter(Boolean).join(" "),
      draw: (figure, width) => bars(figure, width, {
        rows: found.map((row) => ({ name: row.device, value: row.epsilon, tone: "tone-0", text: row.epsilon === null ? "no guarantee" : `\u03b5 ${epsilon(row.epsilon)}` })),
        label: `Epsilon of ${many(found.length, "device")}`,
      }),
    });
  } };
}
