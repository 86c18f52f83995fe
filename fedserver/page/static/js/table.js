// The table behind a figure: everything that the figure shows, as text, with numbers that line up.

import { html, name } from "./dom.js";
import { many } from "./format.js";

const MOST = 250;

export class Table {
  // columns: {head, of: row -> value, text: value -> text, number: whether it lines up at the right, who: a name}.
  constructor(title, columns) {
    this.columns = columns;
    this.rows = () => [];
    this.body = html("tbody");
    this.more = html("p", { class: "more", hidden: true });
    this.filter = html("input", { type: "search", placeholder: "Filter", "aria-label": `Filter the table: ${title}`, oninput: () => this.refresh(true) });
    this.element = html(
      "div",
      {},
      this.filter,
      html(
        "table",
        {},
        html("caption", { class: "unseen" }, title),
        html("thead", {}, html("tr", {}, columns.map((column) => html("th", { scope: "col", class: column.number ? "number" : null }, column.head)))),
        this.body,
      ),
      this.more,
    );
  }

  // rows: a function, since most tables are never opened.
  show(rows, visible) {
    this.rows = rows;
    this.refresh(visible);
  }

  refresh(visible) {
    if (!visible) return;
    const wanted = this.filter.value.trim().toLowerCase();
    const rows = this.rows();
    const found = [];
    let hits = 0;
    for (const row of rows) {
      const texts = this.columns.map((column) => {
        const value = column.of(row);
        return column.text ? column.text(value) : String(value ?? "");
      });
      if (wanted && !texts.join(" ").toLowerCase().includes(wanted)) continue;
      hits += 1;
      if (found.length < MOST) found.push(texts);
    }
    this.filter.hidden = rows.length < 12;
    this.body.replaceChildren(
      ...found.map((texts) =>
        html("tr", {}, texts.map((text, index) => {
          const column = this.columns[index];
          const content = column.who ? name(text) : text;
          return index ? html("td", { class: column.number ? "number" : null }, content) : html("th", { scope: "row", class: column.number ? "number" : null }, content);
        })),
      ),
    );
    this.more.hidden = hits <= MOST;
    this.more.textContent = `and ${many(hits - MOST, "more row")}; filter to see them`;
  }
}
