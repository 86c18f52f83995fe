// A panel: a title, what it says in one sentence, a figure, the table behind the figure, and the figure as a file.

import { fresh, html, say } from "./dom.js";
import { save } from "./save.js";
import { Table } from "./table.js";

export class Panel {
  // about: what the figure shows, in a sentence. columns: of the table, as in `Table`. wide: over both columns.
  constructor({ title, about, columns, wide = false, saves = true }) {
    const id = fresh("panel");
    this.title = title;
    this.saying = html("p", { class: "saying" });
    this.figure = html("div", { class: "figure" });
    this.legend = html("ul", { class: "legend", "aria-label": `Legend of ${title}` });
    this.empty = html("p", { class: "empty", hidden: true });
    this.table = new Table(title, columns);
    this.behind = html("div", { id, class: "behind", hidden: true, role: "region", "aria-label": `Table: ${title}`, tabindex: "0" }, this.table.element);
    this.toggle = html("button", { type: "button", "aria-expanded": "false", "aria-controls": id, onclick: () => this.flip() }, "Table");
    const file = (kind) =>
      html("button", { type: "button", class: "file", "aria-label": `Save ${title} as ${kind.toUpperCase()}`, onclick: () => this.keep(kind) }, kind.toUpperCase());
    this.files = saves ? [file("svg"), file("png")] : [];
    this.element = html(
      "section",
      { class: wide ? "panel wide" : "panel", "aria-labelledby": `${id}-title` },
      html("div", { class: "head" }, html("h2", { id: `${id}-title` }, title), html("div", { class: "tools" }, this.toggle, ...this.files)),
      html("p", { class: "about" }, about),
      this.saying, this.figure, this.legend, this.empty, this.behind,
    );
    this.width = 0; // as of the last layout: to ask the element would make the browser lay out the whole page
    this.drawn = null; // the width at which the figure shows what it has to; null while it shows something else
    this.watcher = new ResizeObserver(([{ contentRect }]) => {
      this.width = Math.floor(contentRect.width);
      this.redraw();
    });
    this.watcher.observe(this.figure);
  }

  // saying: the finding, in words. rows: a function that makes those of the table. draw: called with the figure's element
  // and its width in pixels, or null where `empty` says what is missing. legend: pairs of the classes of a swatch, which say its color
  // and whether its line is dashed, and a text.
  show({ saying = "", rows, draw = null, empty = "", legend = [] }) {
    say(this.saying, saying);
    this.saying.hidden = !saying;
    say(this.empty, empty);
    this.empty.hidden = !empty;
    this.figure.hidden = Boolean(empty) || !draw;
    for (const button of [this.toggle, ...this.files]) button.disabled = Boolean(empty);
    this.legend.replaceChildren(
      ...legend.map(([tone, text]) => html("li", {}, html("span", { class: `swatch ${tone}`, "aria-hidden": "true" }), text)),
    );
    this.legend.hidden = legend.length === 0 || Boolean(empty);
    this.table.show(rows, !this.behind.hidden && !empty);
    this.draw = empty ? null : draw;
    this.drawn = null;
    this.redraw();
  }

  redraw() {
    if (!this.draw || !this.width || this.width === this.drawn) return;
    this.drawn = this.width;
    this.draw(this.figure, this.width);
  }

  flip() {
    this.behind.hidden = !this.behind.hidden;
    this.toggle.setAttribute("aria-expanded", String(!this.behind.hidden));
    this.table.refresh(!this.behind.hidden);
  }

  keep(kind) {
    const picture = this.figure.querySelector("svg");
    if (picture) save(picture, this.title, kind);
  }
}
