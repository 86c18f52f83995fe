// One run: its groups, how well they learn, what grouping gained, and what it cost.

import { html, name, say } from "../dom.js";
import { clock, count, many, percent, points } from "../format.js";
import { clusters, gains } from "../derive.js";
import { Choice, Tile, capital, chips, stage, tiles, until, waits } from "./parts.js";
import { panels } from "./run_panels.js";

export class RunView {
  constructor(chosen) {
    this.choose = new Choice(chosen);
    this.title = html("h1", {}, "Runs");
    this.saying = html("p", { class: "headline" });
    this.waiting = html("p", { class: "until" });
    this.whom = html("div");
    this.tiles = { accuracy: new Tile("Accuracy"), groups: new Tile("Groups"), gain: new Tile("Grouping gained"), round: new Tile("Rounds") };
    this.panels = panels();
    this.settings = html("dl", { class: "settings" });
    this.body = html("div", { hidden: true },
      tiles(...Object.values(this.tiles)), this.waiting, this.whom,
      html("div", { class: "panels" }, this.panels.map((one) => one.panel.element)),
      html("details", {}, html("summary", {}, "Settings of the run"), this.settings));
    this.element = html("div", { class: "view" }, html("div", { class: "over" }, this.title, this.choose.element), this.saying, this.body);
  }

  // The run to show where the address names none: the newest that goes on, or else the newest; one with groups first.
  choice(runs) {
    const better = (run) => 2 * !run.over + (run.clusters > 1);
    return [...runs].sort((a, b) => better(b) - better(a))[0]?.id ?? "";
  }

  show({ server, run, rows, map, beside, followed }) {
    const runs = server?.runs ?? [];
    this.choose.show(runs, followed);
    this.choose.element.hidden = !runs.length;
    const summary = runs.find((one) => one.id === followed);
    this.body.hidden = !run || Boolean(run.gone) || !summary;
    if (run?.gone) return say(this.saying, run.gone);
    if (server && !runs.length) return say(this.saying, "There is no run yet. Start one with: fedserver run start");
    if (!run || !summary) return say(this.saying, "Waiting for the server's answer.");
    this.summary = summary;
    const found = { summary, run, rows: rows ?? [], map, clusters: clusters(run), gains: gains(run, beside), beside };
    this.title.replaceChildren(name(summary.run), " ", stage(summary));
    say(this.saying, headline(found));
    this.facts(found);
    for (const one of this.panels) one.show(found);
    this.settings.replaceChildren(...[["algorithm", `${run.algorithm}, preset ${run.preset}`], ["seed", run.seed ?? "\u2013"], ["started", clock(summary.created)], ...run.settings].flatMap(([key, value]) => [html("dt", {}, key), html("dd", {}, String(value))]));
    this.tick();
  }

  facts({ summary, run, rows, clusters: found, gains: gained, beside }) {
    const filled = found.filter((cluster) => cluster.members.length);
    this.tiles.accuracy.set(percent(summary.accuracy), `${summary.numbers ? "of the variance is explained: " : ""}mean of the devices, as measured last`);
    this.tiles.groups.set(count(filled.length), filled.length ? `of ${many(filled.reduce((sum, cluster) => sum + cluster.members.length, 0), "device")}` : "not formed yet");
    this.tiles.gain.set(gained ? points(gained.gain) : "\u2013", gained ? `over ${beside.words}` : filled.length === 1 ? "this run has one model" : "no single model to compare with");
    const { progress, rounds } = summary;
    this.tiles.round.set(count(progress), rounds ? `${progress} of ${rounds} rounds of training are complete` : summary.title || "\u00a0");
    this.whom.replaceChildren(summary.waiting.length ? chips(summary.waiting) : "");
  }

  tick() {
    if (!this.summary) return;
    const left = until(this.summary);
    say(this.waiting, `${this.summary.title ? `${capital(this.summary.title)}. ` : ""}${waits(this.summary)}${left ? `, ${left}` : ""}.`);
  }
}

// What a stranger wants to know first, in a sentence or two.
function headline({ summary, run, clusters: found, gains: gained, beside }) {
  const filled = found.filter((cluster) => cluster.members.length);
  const devices = filled.reduce((sum, cluster) => sum + cluster.members.length, 0);
  const groups = filled.length > 1 ? `${many(devices, "device")} form ${many(filled.length, "group")}` : filled.length ? `${many(devices, "device")} share one model` : "No groups have been formed yet";
  const accuracy = summary.accuracy === null ? "" : `; the mean ${summary.numbers ? "variance explained" : "accuracy"} is ${percent(summary.accuracy)}`;
  const gain = gained && filled.length > 1 ? ` Grouping gained ${points(gained.gain)} over ${beside.words}: ${percent(gained.own)} instead of ${percent(gained.one)}.` : "";
  return `${run.verdict ? `${run.verdict}. ` : ""}${groups}${accuracy}.${gain}`;
}
