// The page: which view is shown, what it shows, and whether what it shows is of now.

import { html, name, say } from "./dom.js";
import { Stream } from "./stream.js";
import { theme } from "./theme.js";
import { FleetView } from "./views/fleet.js";
import { NewcomersView } from "./views/newcomers.js";
import { RunView } from "./views/run.js";

const VIEWS = { fleet: ["Fleet", FleetView], run: ["Runs", RunView], newcomers: ["Newcomers", NewcomersView] };
const main = document.getElementById("main");
const lamp = document.getElementById("link-state");
const stream = new Stream(changed, connected);
let view = null;
let reached = { up: true, why: "" };

// The address says what is shown: #/fleet, #/run/NAME or #/newcomers/NAME.
function route() {
  const [, kind, run = ""] = location.hash.split("/");
  return { kind: VIEWS[kind] ? kind : "fleet", run: decoded(run) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function navigate() {
  const { kind, run } = route();
  const [title, View] = VIEWS[kind];
  if (!view || view.kind !== kind) {
    view = new View((chosen) => { location.hash = `#/${kind}/${encodeURIComponent(chosen)}`; });
    view.kind = kind;
    main.replaceChildren(view.element);
  }
  view.run = run;
  document.title = `${title} \u2013 Shoal`;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.kind === kind) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  follow();
}

// The stream of what this view shows: the run in the address, or the one that the view would choose.
function follow() {
  const { kind, run } = route();
  const wanted = kind === "fleet" ? "" : run || view.choice(stream.server?.runs ?? []);
  if (stream.followed !== wanted) stream.follow(wanted);
  changed();
}

function changed() {
  const server = stream.server;
  if (server) {
    document.getElementById("notices").replaceChildren(...(server.notices ?? []).map((notice) => html("p", {}, "Attention: ", name(notice))));
    say(document.getElementById("version"), server.version ? `Server version ${server.version}.` : "");
    const { kind, run } = route();
    if (kind !== "fleet" && !run && !stream.followed && view.choice(server.runs ?? [])) return follow();
  }
  view.show(stream);
  light();
}

function connected(up, why) {
  reached = { up, why };
  light();
}

function light() {
  const server = stream.server;
  const state = !reached.up ? "down" : !server ? "wait" : server.reachable ? "up" : "away";
  lamp.className = `link-state ${state}`;
  const text = { down: reached.why, wait: "Connecting", up: "Live", away: "The server does not answer" }[state];
  say(document.getElementById("link-text"), text);
  lamp.title = server?.why ?? "";
  main.classList.toggle("stale", state === "down" || state === "away");
}

document.getElementById("views").append(...Object.entries(VIEWS).map(([kind, [title]]) => html("a", { href: `#/${kind}`, "data-kind": kind }, title)));
theme(document.getElementById("theme"), () => view?.show(stream));
window.addEventListener("hashchange", () => {
  navigate();
  main.focus({ preventScroll: true });
});
setInterval(() => view?.tick?.(stream), 1000);
navigate();
