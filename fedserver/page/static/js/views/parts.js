// What the views share: figures in large type, the choice of a run, and words for a stage.

import { html, name, say } from "../dom.js";
import { ago, duration, many } from "../format.js";

// A figure in large type with a line under it. Give the same element new texts with `set`.
export class Tile {
  constructor(label) {
    this.value = html("dd");
    this.note = html("dd", { class: "note" });
    this.element = html("div", { class: "tile" }, html("dt", {}, label), this.value, this.note);
  }

  set(value, note = "") {
    say(this.value, value);
    say(this.note, note);
  }
}

export const tiles = (...all) => html("dl", { class: "tiles" }, all.map((tile) => tile.element));

// A list to choose a run from; `chosen` gets its id.
export class Choice {
  constructor(chosen) {
    this.select = html("select", { id: "run-choice", onchange: () => chosen(this.select.value) });
    this.element = html("p", { class: "choice" }, html("label", { for: "run-choice" }, "Run"), this.select);
    this.shown = "";
  }

  show(runs, current) {
    const now = JSON.stringify([current, runs.map((run) => [run.id, run.stage])]);
    if (now === this.shown) return;
    this.shown = now;
    this.select.replaceChildren(...runs.map((run) => html("option", { value: run.id, selected: run.id === current }, `${run.run} (${run.algorithm}, ${run.stage})`)));
    this.select.value = current;
  }
}

export const STAGES = {
  waiting: "The next round waits for devices",
  open: "A round is open: devices work",
  reducing: "The server combines the reports",
  finished: "Finished",
  failed: "Failed",
  stopped: "Stopped by an operator",
};

export const stage = (run) => html("span", { class: `stage ${run.stage}` }, run.stage);

// What a run waits for, from whom, and until when; and when the one that follows it starts.
export function waits(run) {
  return capital(run.waiting_for || STAGES[run.stage]);
}

export const capital = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");

export const until = (run) => (run.over ? following(run.next) : run.until === null ? "" : left(run.until));

const following = (at) => (at === null ? "" : `next run in ${duration(Math.max(0, at - Date.now() / 1000))}`);

function left(at) {
  const seconds = at - Date.now() / 1000;
  return seconds > 0 ? `at most ${duration(seconds)} more` : "its time is up";
}

// The names of the devices that are waited for; all of them are in the table.
export function chips(devices, most = 24) {
  const more = devices.length - most;
  return html("ul", { class: "chips" }, devices.slice(0, most).map((device) => html("li", {}, name(device))), more > 0 ? html("li", { class: "more" }, `and ${many(more, "more", "more")}`) : null);
}

export { ago };
