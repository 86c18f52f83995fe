// Newcomers: devices without labels, and which model they were given, as far as the server knows.

import { bars } from "../charts/bars.js";
import { html, say } from "../dom.js";
import { clock, decimal, many, percent } from "../format.js";
import { tone } from "../palette.js";
import { Panel } from "../panel.js";
import { Choice } from "./parts.js";

export class NewcomersView {
  constructor(chosen) {
    this.choose = new Choice(chosen);
    this.title = html("h1", {}, "Newcomers");
    this.saying = html("p", { class: "headline" });
    this.panel = new Panel({
      title: "Placements",
      about: "Which group's model each newcomer was given, how sure that is, and the group that came second.",
      wide: true,
      columns: [
        { head: "Device", of: (row) => row.device, who: true },
        { head: "Group", of: (row) => row.cluster || "none" },
        { head: "Confidence", of: (row) => row.confidence, text: percent, number: true },
        { head: "Runner-up", of: (row) => row.runner_up || "none" },
        { head: "When", of: (row) => row.at, text: clock, number: true },
        { head: "Why", of: (row) => row.reason },
      ],
    });
    this.element = html("div", { class: "view" }, html("div", { class: "over" }, this.title, this.choose.element), this.saying, html("div", { class: "panels" }, this.panel.element));
  }

  choice(runs) {
    return [...runs].sort((a, b) => b.clusters - a.clusters)[0]?.id ?? "";
  }

  show({ server, run, newcomers, followed }) {
    const runs = server?.runs ?? [];
    this.choose.show(runs, followed);
    this.choose.element.hidden = !runs.length;
    if (run?.gone) say(this.saying, run.gone);
    else if (server && !runs.length) say(this.saying, "There is no run yet, so no newcomer can be placed.");
    else if (!run) say(this.saying, "Waiting for the server's answer.");
    const found = newcomers?.placements ?? [];
    if (run && !run.gone) say(this.saying, found.length ? `${many(found.length, "newcomer")} asked for a model of this run.` : "No newcomer has asked for a model of this run.");
    this.panel.show({
      rows: found,
      empty: found.length ? "" : "A device without labels asks for a model with: fedclient place. Where it compares the models on its own samples, its choice stays on the device, and the server only knows that it asked.",
      draw: (figure, width) => bars(figure, width, {
        rows: found.map((row) => ({ name: row.device, value: row.confidence, tone: tone(row.cluster), text: `${row.cluster || "none"} ${row.confidence === null ? "" : decimal(row.confidence, 2)}` })),
        label: `Confidence of ${many(found.length, "placement")}`,
      }),
    });
  }
}
