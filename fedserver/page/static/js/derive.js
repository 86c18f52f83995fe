// What the figures of a run are made of, from its rounds and its devices now. Nothing here draws.

import { dash, order, tone } from "./palette.js";

// A line for each cluster that has this figure ("accuracy" or "loss") in some round, and one for all devices.
// Losses are those of training where there are any: what devices measured on other data is not beside them.
// A round is the number of rounds of training; an accuracy that came with training is of the models before it.
export function series(rows, figure) {
  const at = { loss: 2, accuracy: 3 }[figure];
  const lines = new Map();
  const all = [];
  const trained = figure === "loss" && rows.some((row) => row.on === "train");
  for (const row of rows) {
    const round = row.progress - (figure === "accuracy" && row.on === "train");
    if (row.abandoned || (trained && row.on !== "train")) continue;
    if (typeof row[figure] === "number") all.push([round, row[figure]]);
    for (const cluster of row.clusters ?? []) {
      if (typeof cluster[at] !== "number") continue;
      if (!lines.has(cluster[0])) lines.set(cluster[0], []);
      lines.get(cluster[0]).push([round, cluster[at]]);
    }
  }
  const found = [...lines].sort(([a], [b]) => order(a, b)).map(([name, points]) => ({ name, points, tone: tone(name), dash: dash(name) }));
  if (all.length && found.length !== 1) found.push({ name: "mean", points: all, tone: "tone-none", dash: "5 4" });
  return found;
}

// What each round of training took, with the exchanges after it that trained nothing: [{round, seconds, up, down, slow}].
export function efforts(rows) {
  const found = new Map();
  for (const row of rows) {
    if (typeof row.seconds !== "number") continue;
    const one = found.get(row.progress) ?? { round: row.progress, seconds: 0, up: 0, down: 0 };
    const slow = row.slow && (one.slow?.[1] ?? -1) < row.slow[1] ? row.slow : one.slow;
    found.set(row.progress, { ...one, seconds: one.seconds + row.seconds, up: one.up + row.up, down: one.down + row.down, slow });
  }
  return [...found.values()];
}

// The events of all rounds: [{round, kind, text}].
export const events = (rows) => rows.flatMap((row) => (row.events ?? []).map(([kind, text]) => ({ round: row.progress, kind, text })));

// Events that change clusters, as marks on a figure.
const CHANGES = ["grouped", "split", "merged", "moved", "drifted", "joined"];
export function marks(rows) {
  const found = new Map();
  for (const { round, kind, text } of events(rows)) {
    if (!CHANGES.includes(kind)) continue;
    const before = found.get(round);
    found.set(round, before ? [round, `${before[1]}; ${text}`, before[2] === kind ? kind : "changed"] : [round, text, kind]);
  }
  return [...found.values()];
}

// For each device, in which cluster it was: [{device, runs: [[from, to, cluster], ...]}], sorted by where they are now.
export function strips(rows) {
  const found = new Map();
  for (const row of rows) {
    for (const [device, cluster] of Object.entries(row.moved ?? {})) {
      const runs = found.get(device) ?? [];
      if (runs.length) runs.at(-1)[1] = Math.max(runs.at(-1)[0], row.progress - 1);
      runs.push([row.progress, row.progress, cluster]);
      found.set(device, runs);
    }
  }
  const last = rows.at(-1)?.progress ?? 0;
  for (const runs of found.values()) runs.at(-1)[1] = last;
  return [...found].map(([device, runs]) => ({ device, runs })).sort((a, b) => order(a.runs.at(-1)[2], b.runs.at(-1)[2]) || order(a.device, b.device));
}

// What each device gained over the one model of another run, and the means over them and over each cluster.
export function gains(run, beside) {
  if (!beside) return null;
  const devices = run.devices.flatMap((one) => {
    const other = beside.devices[one.device];
    return one.accuracy === null || other === undefined || other === null ? [] : [{ device: one.device, cluster: one.cluster, own: one.accuracy, one: other, gain: one.accuracy - other }];
  });
  if (!devices.length) return null;
  devices.sort((a, b) => order(a.cluster, b.cluster) || order(a.device, b.device));
  const mean = (key, among) => among.reduce((sum, each) => sum + each[key], 0) / among.length;
  const clusters = [...new Set(devices.map((each) => each.cluster))].map((cluster) => {
    const among = devices.filter((each) => each.cluster === cluster);
    return { cluster, devices: among.length, own: mean("own", among), one: mean("one", among), gain: mean("gain", among) };
  });
  return { devices, clusters, own: mean("own", devices), one: mean("one", devices), gain: mean("gain", devices) };
}

// The clusters now, each with its devices and the mean of their latest figures.
export function clusters(run) {
  const by = new Map(run.devices.map((device) => [device.device, device]));
  return run.clusters
    .map(({ key, members }) => {
      const measured = members.map((member) => by.get(member)).filter((device) => device && device.accuracy !== null);
      const samples = measured.reduce((sum, device) => sum + device.examples, 0);
      const mean = (figure) => (samples ? measured.reduce((sum, device) => sum + device[figure] * device.examples, 0) / samples : null);
      return { key, members, accuracy: mean("accuracy"), loss: measured.every((device) => device.loss !== null) ? mean("loss") : null };
    })
    .sort((a, b) => order(a.key, b.key));
}
