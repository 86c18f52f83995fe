// One stream of server-sent events: what the server, the fleet or a run is like now.

// Calls `changed` at most once for each picture that the browser draws, however often events come.
export class Stream {
  constructor(changed, connected) {
    this.changed = changed;
    this.connected = connected;
    this.source = null;
    this.asked = false;
    this.followed = null;
    this.clear();
  }

  clear() {
    this.server = null;
    this.fleet = null;
    this.run = null;
    this.rows = null;
    this.map = null;
    this.beside = null;
    this.newcomers = null;
    this.releases = null;
  }

  // run: "" for the fleet.
  follow(run) {
    this.close();
    if (run !== this.followed) {
      const server = this.server;
      this.clear();
      this.server = server;
    }
    this.followed = run;
    const source = new EventSource(run ? `/events?run=${encodeURIComponent(run)}` : "/events");
    this.source = source;
    for (const topic of ["server", "fleet", "run", "map", "beside", "newcomers", "releases"]) {
      source.addEventListener(topic, (event) => this.take(topic, JSON.parse(event.data)));
    }
    source.addEventListener("rounds", (event) => {
      const { from, rows } = JSON.parse(event.data);
      this.take("rows", from ? [...(this.rows ?? []).slice(0, from), ...rows] : rows);
    });
    source.addEventListener("open", () => this.connected(true, ""));
    source.addEventListener("error", () => {
      const closed = source.readyState === EventSource.CLOSED;
      this.connected(false, closed ? "Not admitted: get another link with fedserver page --link" : "The page's process does not answer");
      if (closed) setTimeout(() => this.source === source && this.follow(run), 5000);
    });
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  take(topic, value) {
    this[topic] = value;
    if (this.asked) return;
    this.asked = true;
    setTimeout(() => {
      this.asked = false;
      this.changed();
    }, 60);
  }
}
