// Newcomers: devices that asked for a model, and what they were answered. A newcomer that compares the models on its
// own samples keeps its choice, so the server knows only which models it was given.

import { bars } from "../charts/bars.js";
import { html, say } from "../dom.js";
import { clock, decimal, many, percent } from "../format.js";
import { tone } from "../palette.js";
import { Panel } from "../panel.js";
import { Choice } from "./parts.js";

const SHOWED = { nothing: "nothing", wish: "nothing", descriptor: "a descriptor", scores: "losses of the models", prototypes: "mean embeddings", vote: "a private vote" };
const ANSWERS = {
  placed: () => "placed by the server",
  nearest: () => "no group fits; given the nearest model",
  abstained: () => "no group fits; given no model",
  handed_out: (row) => `given the models of ${row.models.join(", ")}${row.count > row.models.length ? ` and ${row.count - row.models.length} more` : ""}`,
};
const answer = (row) => (ANSWERS[row.outcome] ?? (() => row.outcome))(row);

export class NewcomersView {
  constructor(chosen) {
    this.choose = new Choice(chosen);
    this.title = html("h1", {}, "Newcomers");
    this.saying = html("p", { class: "headline" });
    this.panel = new Panel({
      title: "Placements",
      about: "What each newcomer was answered last, and how sure the server is of it. The table has earlier answers, too.",
      wide: true,
      columns: [
        { head: "Device", of: (row) => row.device, who: true },
        { head: "Answer", of: answer },
        { head: "Group", of: (row) => row.cluster || "not known" },
        { head: "Confidence", of: (row) => row.confidence, text: percent, number: true },
        { head: "Runner-up", of: (row) => row.runner_up || "not known" },
        { head: "Showed", of: (row) => SHOWED[row.evidence] ?? row.evidence },
        { head: "When", of: (row) => row.at, text: clock, number: true },
        { head: "Times", of: (row) => row.times, number: true },
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
    const found = newcomers?.placements ?? [];
    const last = [...new Map([...found].reverse().map((row) => [row.device, row])).values()].reverse();
    if (run?.gone) say(this.saying, run.gone);
    else if (server && !runs.length) say(this.saying, "There is no run yet, so no newcomer can be placed.");
    else if (!run) say(this.saying, "Waiting for the server's answer.");
    else say(this.saying, headline(last));
    this.panel.show({
      rows: () => found,
      empty: found.length ? "" : "A device without labels asks for a model with: fedclient place. Where it compares the models on its own samples, its choice stays on the device, and the server only knows which models it gave away.",
      draw: (figure, width) => bars(figure, width, {
        full: 1,
        rows: last.map((row) => ({ name: row.device, value: row.confidence, tone: tone(row.cluster), text: row.outcome === "handed_out" ? "own choice" : `${row.outcome === "abstained" ? "none" : row.cluster} ${row.confidence === null ? "" : decimal(row.confidence, 2)}` })),
        label: `Answers to ${many(last.length, "newcomer")}: ${last.slice(0, 40).map((row) => `${row.device} ${row.outcome === "placed" ? row.cluster : answer(row)}`).join("; ")}`,
      }),
    });
  }
}

// How many were placed by the server, and of how many it knows that it does not know.
function headline(last) {
  if (!last.length) return "No newcomer has asked for a model of this run.";
  const number = (...outcomes) => last.filter((row) => outcomes.includes(row.outcome)).length;
  const parts = [
    [number("placed", "nearest"), "given a group's model by the server"],
    [number("abstained"), "given none, as no group fits"],
    [number("handed_out"), "given several models to compare, with the choice kept on the device"],
  ];
  return `${many(last.length, "newcomer")} asked for a model of this run: ${parts.filter(([count]) => count).map(([count, words]) => `${count} ${words}`).join(", ")}.`;
}
