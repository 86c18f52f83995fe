// The fleet: every device as a dot, and what each run waits for.

import { dots } from "../charts/dots.js";
import { html, name, say } from "../dom.js";
import { ago, count, many, percent, points } from "../format.js";
import { order } from "../palette.js";
import { Panel } from "../panel.js";
import { Tile, capital, chips, stage, tiles, until, waits } from "./parts.js";

const STATES = { working: "connected, with a task", idle: "connected, without a task", absent: "no contact now", expected: "not called yet" };
const RECENT = [[60, "called in the last minute"], [600, "in the last ten minutes"], [3600, "in the last hour"], [86400, "in the last day"], [Infinity, "earlier"]];

export class FleetView {
  constructor() {
    this.title = html("h1", {}, "Fleet");
    this.saying = html("p", { class: "headline" });
    this.tiles = Object.fromEntries(["known", "working", "idle", "absent", "expected"].map((key) => [key, new Tile({ known: "Devices", working: "Working", idle: "Idle", absent: "Not connected", expected: "Expected" }[key])]));
    this.by = html("select", { id: "group-by", onchange: () => this.last && this.devices(this.last) });
    this.panel = new Panel({
      title: "Devices",
      about: "Each dot is a device: full while it works, open while it is idle, crossed while it is not connected.",
      wide: true,
      columns: [
        { head: "Device", of: (d) => d.device, who: true },
        { head: "State", of: (d) => d.state },
        { head: "Last contact", of: (d) => d.seen, text: ago, number: true },
        { head: "Works on", of: (d) => (d.run ?? "") },
        { head: "Role", of: (d) => [d.role, d.standing === "pending" ? "waits for approval" : ""].filter(Boolean).join(", ") },
        { head: "Labels", of: (d) => labels(d) },
        { head: "Software", of: (d) => d.software },
      ],
    });
    this.panel.figure.before(html("p", { class: "choice" }, html("label", { for: "group-by" }, "Group by"), this.by));
    this.waiting = new Panel({
      title: "What is waited for",
      about: "For each run that goes on: what it waits for, from which devices, and for how long at most.",
      wide: true,
      saves: false,
      columns: [
        { head: "Run", of: (r) => r.run, who: true },
        { head: "Stage", of: (r) => r.stage },
        { head: "Waits for", of: waits },
        { head: "Until", of: until },
        { head: "Devices", of: (r) => r.waiting.join(", ") },
      ],
    });
    this.waiting.figure.className = "waits";
    this.released = new Panel({
      title: "Releases",
      about: "The models that newcomers are given: what each channel has now and had before, and how good it is in each group, with two standard errors.",
      wide: true,
      saves: false,
      columns: [
        { head: "Release", of: (r) => r.release, who: true },
        { head: "Channels", of: (r) => r.channels.join(", ") },
        { head: "Made", of: (r) => r.made || null, text: ago, number: true },
        { head: "Devices", of: (r) => r.devices, number: true },
        { head: "Accuracy", of: (r) => r.accuracy, text: percent, number: true },
        { head: "Groups", of: (r) => r.groups.map((group) => `${group.key} ${reached(group)}`).join(", ") },
        { head: "Signed by", of: (r) => r.authority },
        { head: "Attention", of: attention },
      ],
    });
    this.released.figure.className = "channels";
    this.element = html("div", { class: "view" }, this.title, this.saying, tiles(...Object.values(this.tiles)), html("div", { class: "panels" }, this.waiting.element, this.released.element, this.panel.element));
  }

  choice() {
    return "";
  }

  show({ fleet, server, releases }) {
    if (server) this.runs(server.runs ?? []);
    if (releases?.releases) this.releases(releases);
    if (!fleet) return say(this.saying, "Waiting for the server's answer.");
    this.last = fleet.devices;
    const of = (state) => fleet.devices.filter((device) => device.state === state).length;
    const absent = of("absent") + of("expected"), total = fleet.devices.length;
    this.tiles.known.set(count(total), "known to the server");
    for (const state of Object.keys(STATES)) this.tiles[state].set(count(of(state)), STATES[state]);
    const here = total - absent;
    say(this.saying, total ? `${count(here)} of ${many(total, "device")} ${here === 1 ? "is" : "are"} connected.` : "No device has joined yet.");
    this.devices(fleet.devices);
  }

  runs(runs) {
    const active = runs.filter((run) => !run.over);
    this.waiting.show({
      rows: () => active,
      empty: active.length ? "" : "No run goes on, so nothing is waited for. Start one with: fedserver run start",
      draw: (figure) => figure.replaceChildren(...active.map((run) =>
        html("article", {}, html("h3", {}, html("a", { href: `#/run/${encodeURIComponent(run.id)}` }, name(run.run)), " ", stage(run)), html("p", {}, run.title ? `${capital(run.title)}. ` : "", waits(run), until(run) ? html("span", { class: "until" }, `, ${until(run)}`) : "", "."), chips(run.waiting)))),
    });
  }

  releases({ channels, releases }) {
    const by = new Map(releases.map((release) => [release.release, release]));
    this.released.show({
      rows: () => releases,
      empty: releases.length ? "" : "Nothing is released yet. A run that finishes and has learned is released by itself.",
      draw: (figure) => figure.replaceChildren(...channels.map(({ channel, pinned, rollout, moves: [now, ...before] }) => {
        const found = by.get(now.release);
        return html("article", {},
          html("h3", {}, name(channel), pinned ? " (pinned)" : ""),
          html("p", {}, now.release ? name(now.release) : "No release", ` since ${ago(now.at)}: ${now.why}. `, found ? `${reached(found)}. ${attention(found)}` : ""),
          found ? chips(found.groups.map((group) => `${group.key}: ${many(group.devices, "device")}, ${reached(group)}`)) : null,
          rollout ? html("p", {}, rolledOut(rollout)) : null,
          rollout ? chips(Object.entries(rollout.clusters).map(compared)) : null,
          before.length ? html("p", { class: "until" }, "Before: ", name(before.slice(0, 5).map((move) => move.release || "none").join(", "))) : null);
      })),
    });
  }

  devices(devices) {
    const keys = [...new Set(devices.flatMap((device) => Object.keys(device.labels)))].sort(order);
    const options = [["state", "state"], ["seen", "last contact"], ["run", "run"], ["role", "role"], ...keys.map((key) => [`label:${key}`, `label ${key}`])];
    if (this.by.options.length !== options.length) this.by.replaceChildren(...options.map(([value, text]) => html("option", { value }, text)));
    const groups = new Map();
    for (const device of devices) {
      const group = groupOf(device, this.by.value);
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(device);
    }
    const sorted = [...groups].sort(([a], [b]) => order(a, b));
    this.panel.show({
      rows: () => devices,
      empty: devices.length ? "" : "No device has joined. Create a join string with: fedserver token create",
      draw: (figure, width) => dots(figure, width, {
        label: `${many(devices.length, "device")}, grouped: ${sorted.map(([group, all]) => `${group} ${all.length}`).join(", ")}. The table has each of them.`,
        groups: sorted.map(([group, all]) => ({ name: group, devices: all.map((device) => ({ ...device, cluster: "", title: `${device.device}: ${device.state}, last contact ${ago(device.seen)}${labels(device) ? `, ${labels(device)}` : ""}` })) })),
      }),
    });
  }

  tick(stream) {
    if (stream.server) this.runs(stream.server.runs ?? []);
  }
}

const reached = ({ accuracy, error, numbers }) => (accuracy === null ? "not measured" : `${percent(accuracy)} \u00b1 ${percent(2 * error)}${numbers ? " of the variance explained" : ""}`);

const rolledOut = ({ new: release, share, margin, began, ended, outcome, why }) =>
  `${percent(share)} of the devices ${outcome ? "tried" : "try"} ${release} beside it, which may be worse by ${(100 * margin).toFixed(1)}\u00a0points: ${outcome ? `${outcome} ${ago(ended)}` : `since ${ago(began)}`}, ${why}.`;

const compared = ([key, { devices, agreement, labeled, low, high }]) =>
  `${key}: ${many(devices, "device")}, ${agreement === null ? "no predictions" : `${percent(agreement)} alike`}, ${labeled ? `${many(labeled, "label")}, ${points(low)} to ${points(high)}` : "no labels"}`;

const attention = ({ wrong, revoked, withdrawn, watched }) => [wrong, revoked.length + withdrawn.length ? `Trained by devices that are revoked: ${[...revoked, ...withdrawn].join(", ")}` : "", ...watched.filter(({ since }) => since !== null).map(moved)].filter(Boolean).join(". ");

const moved = ({ key, share, error, since }) => `${key ? `Cluster ${key}` : "Devices that chose by themselves"}: ${percent(share)} \u00b1 ${percent(2 * error)} have other data than the model was made for, since ${ago(since)}`;

function groupOf(device, by) {
  if (by.startsWith("label:")) return device.labels[by.slice(6)] ?? "without this label";
  if (by === "seen") return device.seen === null ? "never called" : RECENT.find(([most]) => Date.now() / 1000 - device.seen <= most)[1];
  return { state: device.state, run: device.run || "works on nothing", role: device.role || "without a role" }[by] ?? device.state;
}

const labels = (device) => Object.entries(device.labels).map(([key, value]) => `${key}=${value}`).join(", ");
