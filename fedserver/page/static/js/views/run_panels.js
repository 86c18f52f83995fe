// The panels of a run. Each has a panel, and shows what was found of the run.

import { bars, pairs } from "../charts/bars.js";
import { lines } from "../charts/lines.js";
import { map } from "../charts/map.js";
import { strip } from "../charts/strip.js";
import { groups } from "../charts/groups.js";
import { efforts, events, marks, series, strips } from "../derive.js";
import { bytes, count, decimal, duration, many, percent, points } from "../format.js";
import { order, tone } from "../palette.js";
import { Panel } from "../panel.js";
import { privacy } from "./privacy.js";

const who = (key = "device") => ({ head: "Device", of: (row) => row[key], who: true });
const group = { head: "Group", of: (row) => row.cluster || "none" };
const round = { head: "Round", of: (row) => row.round, number: true };
const number = (head, of, text) => ({ head, of, text, number: true });

export function panels() {
  return [members(), gain(), curve("accuracy"), curve("loss"), history(), places(), privacy(), effort(), traffic(), happened()];
}

function members() {
  const panel = new Panel({
    title: "Groups",
    about: "Devices whose data are alike share a model. The server found the groups; no one named them.",
    columns: [group, who(), number("Accuracy", (row) => row.accuracy, percent), number("Loss", (row) => row.loss, decimal), number("Samples measured on", (row) => row.examples, count)],
  });
  return { panel, show: ({ run, clusters }) => panel.show({
    rows: () => [...run.devices].sort((a, b) => order(a.cluster, b.cluster) || order(a.device, b.device)),
    empty: clusters.some((cluster) => cluster.members.length) ? "" : "No groups yet. Most algorithms train one model for all devices first.",
    draw: (figure, width) => groups(figure, width, { clusters: clusters.filter((cluster) => cluster.members.length), label: `Groups: ${clusters.map((cluster) => `${cluster.key}, ${many(cluster.members.length, "device")}, accuracy ${percent(cluster.accuracy)}`).join("; ")}` }),
  }) };
}

function gain() {
  const panel = new Panel({
    title: "What grouping gained",
    about: "The accuracy of each device with its group's model (colored), beside one model for all devices (gray).",
    columns: [who(), group, number("One model", (row) => row.one, percent), number("Its group's model", (row) => row.own, percent), number("Difference", (row) => row.gain, points)],
  });
  return { panel, show: ({ gains, beside, clusters }) => panel.show({
    rows: () => gains?.devices ?? [],
    empty: gains ? "" : clusters.length === 1 ? "This run has one model. Its accuracy appears beside that of a run with groups on the same devices." : "There is no single model to compare with. Start a run with fedavg on the same devices, and its accuracy appears here.",
    saying: gains ? `On average ${points(gains.gain)}, from ${percent(gains.one)} to ${percent(gains.own)}. Compared with ${beside.words}.` : "",
    draw: (figure, width) => {
      const each = gains.devices.length <= 40;
      const rows = (each ? gains.devices : gains.clusters).map((row) => ({ name: each ? row.device : row.cluster, from: row.one, to: row.own, tone: tone(row.cluster), text: points(row.gain) }));
      pairs(figure, width, { rows, format: percent, names: ["one model", "group's model"], label: `Difference to one model: ${gains.clusters.map((row) => `${row.cluster} ${points(row.gain)}`).join(", ")}` });
    },
  }) };
}

function curve(figure) {
  const accuracy = figure === "accuracy";
  const panel = new Panel({
    title: accuracy ? "Accuracy" : "Loss",
    about: accuracy ? "The mean accuracy of each group's devices on samples that they did not train on, after each round after which they measured it." : "The mean loss of each group's devices while they trained.",
    columns: [round, { head: "Group", of: (row) => row.name }, number(accuracy ? "Accuracy" : "Loss", (row) => row.value, accuracy ? percent : decimal)],
  });
  return { panel, show: ({ rows, summary }) => {
    const found = series(rows, figure);
    const last = found.map((one) => `${one.name} ${accuracy ? percent(one.points.at(-1)[1]) : decimal(one.points.at(-1)[1])}`).join(", ");
    panel.show({
      rows: () => found.flatMap((one) => one.points.map(([at, value]) => ({ round: at, name: one.name, value }))).sort((a, b) => a.round - b.round || order(a.name, b.name)),
      empty: found.length ? "" : `No round with ${accuracy ? "an accuracy" : "a loss"} is over yet.`,
      saying: accuracy && summary.numbers ? "Labels are numbers: this is the share of their variance that is explained." : "",
      legend: found.map((one) => [one.dash ? `${one.tone} dashed` : one.tone, one.name]),
      draw: (element, width) => lines(element, width, { series: found, marks: marks(rows), text: accuracy ? (value) => `${(100 * value).toFixed(value > 0.9995 ? 0 : 1)}` : (value) => decimal(value, 2), unit: accuracy ? `${summary.numbers ? "variance explained" : "accuracy"}, %` : "loss", floor: 0, ceiling: accuracy ? 1 : Infinity, label: `${accuracy ? "Accuracy" : "Loss"} over the rounds. Last: ${last}` }),
    });
  } };
}

function history() {
  const panel = new Panel({
    title: "Groups over time",
    about: "One row for each device, colored by its group after each round; vertical lines where groups changed.",
    wide: true,
    columns: [who(), { head: "From round", of: (row) => row.from, number: true }, { head: "To round", of: (row) => row.to, number: true }, group],
  });
  return { panel, show: ({ rows }) => {
    const found = strips(rows);
    const changes = marks(rows);
    panel.show({
      rows: () => found.flatMap((row) => row.runs.map(([from, to, cluster]) => ({ device: row.device, from, to, cluster }))),
      empty: found.length ? "" : "No device has been in a group yet.",
      saying: changes.length ? `Last change, in round ${changes.at(-1)[0]}: ${changes.at(-1)[1]}.` : "",
      legend: [...new Set(found.flatMap((row) => row.runs.map((run) => run[2])))].sort(order).map((cluster) => [tone(cluster), cluster || "no group"]),
      draw: (figure, width) => strip(figure, width, { rows: found, marks: changes, first: rows[0].progress, last: rows.at(-1).progress, label: `The groups of ${many(found.length, "device")} in rounds ${rows[0].progress} to ${rows.at(-1).progress}` }),
    });
  } };
}

function places() {
  const panel = new Panel({
    title: "Map of the data",
    about: "Devices that lie close together described their data alike. Ellipses show where a device lies with 95 % confidence, given its samples and the noise that protects them.",
    columns: [who(), group, number("x", (row) => row.x, decimal), number("y", (row) => row.y, decimal)],
  });
  return { panel, show: ({ map: found, run }) => {
    const of = new Map(run.devices.map((device) => [device.device, device.cluster]));
    const points = (found?.points ?? []).map((point) => ({ ...point, cluster: of.get(point.device) ?? "" }));
    panel.show({
      rows: () => points,
      empty: points.length ? "" : "No device has released a description of its data in this run. Some algorithms never ask for one.",
      saying: points.length ? `As released after round ${found.round}; in units of the typical uncertainty.` : "",
      legend: [...new Set(points.map((point) => point.cluster))].sort(order).map((cluster) => [tone(cluster), cluster || "no group"]),
      draw: (figure, width) => map(figure, width, { points, label: `Map of the descriptions of ${many(points.length, "device")}` }),
    });
  } };
}

function effort() {
  const panel = new Panel({
    title: "Seconds of each round",
    about: "How long each round took, with what was asked after it, and the device that worked longest in it.",
    columns: [round, number("Round", (row) => row.seconds, duration), { head: "Slowest device", of: (row) => row.slow?.[0] ?? "", who: true }, number("It worked", (row) => row.slow?.[1] ?? null, duration), number("Sent", (row) => row.up, bytes), number("Fetched", (row) => row.down, bytes)],
  });
  return { panel, show: ({ rows }) => {
    const timed = efforts(rows);
    const slow = timed.findLast((row) => row.slow);
    panel.show({
      rows: () => timed,
      empty: timed.length ? "" : "No round is over yet.",
      saying: slow ? `In round ${slow.round}, ${slow.slow[0]} worked longest: ${duration(slow.slow[1])}.` : "",
      legend: [["tone-0", "round"], ["tone-1 dashed", "slowest device"]],
      draw: (figure, width) => lines(figure, width, { height: 230, series: [{ name: "round", tone: "tone-0", dash: "", points: timed.map((row) => [row.round, row.seconds]) }, { name: "slowest", tone: "tone-1", dash: "5 3", points: timed.filter((row) => row.slow).map((row) => [row.round, row.slow[1]]) }].filter((one) => one.points.length), text: duration, unit: "seconds", floor: 0, label: "Seconds of each round and of its slowest device" }),
    });
  } };
}

function traffic() {
  const panel = new Panel({
    title: "Bytes by device",
    about: "What each device sent and fetched in this run: models and descriptions.",
    columns: [who(), number("Sent", (row) => row.bytes_up, bytes), number("Fetched", (row) => row.bytes_down, bytes)],
  });
  return { panel, show: ({ run }) => {
    const moved = run.devices.filter((device) => device.bytes_up + device.bytes_down > 0).sort((a, b) => b.bytes_up + b.bytes_down - a.bytes_up - a.bytes_down || order(a.device, b.device));
    const sum = (key) => moved.reduce((total, device) => total + device[key], 0);
    panel.show({
      rows: () => moved,
      empty: moved.length ? "" : "Nothing has been sent yet.",
      saying: moved.length ? `In all, ${bytes(sum("bytes_up"))} were sent and ${bytes(sum("bytes_down"))} fetched.` : "",
      draw: (figure, width) => bars(figure, width, { rows: moved.map((device) => ({ name: device.device, value: device.bytes_up + device.bytes_down, tone: tone(device.cluster), text: bytes(device.bytes_up + device.bytes_down) })), label: `Bytes of ${many(moved.length, "device")}` }),
    });
  } };
}

function happened() {
  const panel = new Panel({
    title: "Events",
    about: "What changed: groups formed, split and merged, devices that moved, rounds without a result.",
    wide: true,
    saves: false,
    columns: [round, { head: "Kind", of: (row) => row.kind.replace("_", " ") }, { head: "What happened", of: (row) => row.text }],
  });
  panel.figure.className = "events";
  return { panel, show: ({ rows, run }) => {
    const found = [...events(rows), ...run.missing.map(({ device, reason }) => ({ round: rows.at(-1)?.progress ?? 0, kind: "missing", text: `${device}: ${reason}` }))].reverse();
    panel.show({
      rows: () => found,
      empty: found.length ? "" : "Nothing out of the ordinary has happened.",
      draw: (figure) => figure.replaceChildren(list(found.slice(0, 8))),
    });
  } };
}

function list(found) {
  const items = found.map(({ round: at, kind, text }) => {
    const item = document.createElement("li");
    const when = document.createElement("span");
    when.className = "when";
    when.textContent = `round ${at}, ${kind.replace("_", " ")}`;
    item.append(when, text);
    return item;
  });
  const all = document.createElement("ol");
  all.append(...items);
  return all;
}
