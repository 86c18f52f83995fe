// A device of Shoal: node device.js FOLDER join LINE NAME | train DATA [HIDDEN] | place DATA [HIDDEN] [RUN]
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeSync } from "node:fs";
import { join as path } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { credentials, join, newKey } from "./join.js";
import { Work, agree } from "./work.js";
import { CallError, Client, Failed, duration, seconds, sha256, strictly, type, within } from "./wire.js";

const NOT_FOUND = 5;
const OUTCOMES = ["", "accepted", "duplicate", "late", "refused"], LATE = 3;
const LARGEST = 64 << 20; // bytes of a model
const wait = (time) => sleep(1000 * time);
const waitWithin = ([earliest, latest]) => { // no server makes it call without a pause, or stay away for long
  const most = Math.min(Math.max(latest, 1), 3600), least = Math.min(earliest, most);
  return wait(least + Math.random() * (most - least));
};

class Folder { // on return of `keep` a file is on the disk, whole or not at all
  constructor(root) { this.root = root; mkdirSync(root, { recursive: true, mode: 0o700 }); }
  read(name) { return existsSync(path(this.root, name)) ? readFileSync(path(this.root, name), "utf8") : ""; }
  keep(name, text) {
    const file = path(this.root, name), part = openSync(`${file}.part`, "w", 0o600);
    writeSync(part, text);
    fsyncSync(part);
    closeSync(part);
    renameSync(`${file}.part`, file);
    const folder = openSync(this.root, "r");
    fsyncSync(folder);
    closeSync(folder);
  }
  forget(name) { rmSync(path(this.root, name), { force: true }); }
}

class Device {
  constructor(folder, work) {
    const identity = JSON.parse(folder.read("identity"));
    Object.assign(this, { folder, work, client: new Client(identity.address, credentials(identity)) });
  }

  async patiently(call) { // until the server answers: in the window that it gives, or later and later
    for (let tries = 0; ; tries++) {
      try {
        return await call();
      } catch (error) {
        if (!(error instanceof CallError) || !error.again) throw error;
        await waitWithin(error.window ?? [0, Math.min(45, this.spread * 2 ** tries)]);
      }
    }
  }

  spread = 1;
  ask(name, value, time) { return this.patiently(() => this.client.call("DeviceService", name, { session: this.client.session, ...value }, time)); }

  remember(mark) { if (mark) this.folder.keep("mark", mark); }

  async train() {
    for (let greeted = false; ; ) {
      try {
        if (!greeted) {
          const mark = this.folder.read("mark"), software = "shoal nodejs example";
          this.client.session = "";
          this.welcome = await this.patiently(() => this.client.call(
            "DeviceService", "Hello", { software, oldest_protocol: 1, newest_protocol: 1, mark }));
          this.client.session = this.welcome.session;
          if (this.welcome.spread) this.spread = Math.max(1, seconds(this.welcome.spread));
          this.remember(this.welcome.mark);
          greeted = true;
        }
        const poll = seconds(this.welcome.poll), next = await this.ask("NextTask", { wait: duration(poll) }, poll);
        if (next.task) await this.serve(next.task, within(next.$bytes, 1, 4));
        else if (next.idle?.finished) return await this.ask("Leave", {});
        else if (next.idle) {
          await waitWithin([next.idle.earliest, next.idle.latest].map(seconds));
        }
      } catch (error) {
        if (error.code !== "say-hello") throw error;
        greeted = false;
      }
    }
  }

  async serve(task, payload) {
    const { lease } = task, stop = new AbortController();
    const key = `${lease.run} ${lease.round} ${task.seed} ${payload && sha256(payload).toString("hex")}`;
    const beat = setInterval(() => {
      this.client.call("DeviceService", "Alive", { session: this.client.session, lease })
        .then(({ wanted }) => wanted || stop.abort(), () => {}); // what failed shows in the next call that counts
    }, 1000 * Math.max(0.1, seconds(this.welcome.heartbeat)));
    const title = `${lease.run}, round ${lease.round}: ${task.title}`;
    try {
      let result = this.kept(key) ?? await this.perform(task, payload, key, stop.signal), most = task.inline_report ?? 0;
      while (!stop.signal.aborted) {
        try {
          const receipt = await this.report(lease, result, most, stop.signal);
          if (receipt === null) break;
          this.remember(receipt.mark);
          // Only now may the result be forgotten. One that is late may be asked for again, by another lease.
          if (receipt.outcome !== LATE) this.folder.forget("outbox");
          const outcome = result.failure ? `failed, ${result.failure.message}` : OUTCOMES[receipt.outcome];
          console.log(`${title}: ${outcome}${receipt.reason && `, ${receipt.reason}`}`);
          return;
        } catch (error) {
          if (!(error instanceof CallError) || error.code === "say-hello" || result.failure) throw error;
          if (error.status === NOT_FOUND) most = 0; // a blob was lost, there or on its way: upload it
          else result = { failure: { code: error.code || "refused", message: error.message } };
          await wait(Math.random());
        }
      }
      console.log(`${title}: not wanted any more`);
    } finally {
      clearInterval(beat);
    }
  }

  // The result of a task: on the disk before a byte of it is sent, so that no work is done twice.
  async perform(task, payload, key, signal) {
    this.folder.forget("outbox");
    try {
      agree(task.terms);
      const inline = new Map((task.inline ?? []).map((bytes) => [sha256(bytes).toString("hex"), bytes]));
      const fetch = (blob) => this.fetch(blob, signal, inline), wanted = () => !signal.aborted;
      const result = await this.work.answer(payload, task.seed, fetch, wanted);
      if (wanted()) {
        const blobs = Object.fromEntries([...result.blobs].map(([name, bytes]) => [name, bytes.toString("base64")]));
        this.folder.keep("outbox", JSON.stringify({ key, payload: Buffer.from(result.payload).toString("base64"), blobs }));
      }
      return result;
    } catch (error) {
      if (error.code === "say-hello") throw error;
      const known = error instanceof Failed || error instanceof CallError;
      if (known) return { failure: { code: error.code || "failed", message: error.message } };
      console.error(error); // it may hold values of the data, which do not leave
      return { failure: { code: "learner-failed", message: "the device's code failed" } };
    }
  }

  kept(key) {
    const found = JSON.parse(this.folder.read("outbox") || "null");
    if (found?.key !== key) return undefined;
    const blobs = Object.entries(found.blobs).map(([name, text]) => [name, Buffer.from(text, "base64")]);
    return { payload: Buffer.from(found.payload, "base64"), blobs: new Map(blobs) };
  }

  async report(lease, { payload, blobs = new Map(), failure }, most, signal) { // null: it is not wanted any more
    const inline = [];
    for (const [name, bytes] of blobs) {
      if (bytes.length <= most) { inline.push(bytes); continue; }
      const blob = { sha256: Buffer.from(name, "hex"), size: bytes.length };
      for (let held = -1; held < bytes.length; ) {
        if (signal.aborted) return null;
        held = await this.patiently(async () => { // after a break, from where the server has it
          const known = Number((await this.client.call("BlobService", "Uploaded", { blob })).held);
          return known < bytes.length ? this.client.upload(blob, bytes, known) : known;
        });
      }
    }
    const result = failure ? { failure } : { payload: type("Payload").decode(payload) };
    return (await this.ask("Report", { report: { lease, ...result, inline } })).receipt;
  }

  async fetch(blob, signal, inline = new Map()) { // the bytes of a blob, checked by their name
    const given = inline.get(Buffer.from(blob.sha256).toString("hex")), size = Number(blob.size);
    if (given) return given;
    if (size > LARGEST) throw new Failed("refused", `a model of ${size} bytes is too large for this device`);
    for (let tries = 0; tries < 3; tries++) {
      let bytes = Buffer.alloc(0);
      await this.patiently(async () => {
        const [more, error] = await this.client.fetch(blob, bytes.length, signal);
        bytes = Buffer.concat([bytes, more]);
        if (bytes.length > size) throw new Failed("bad-payload", "a blob is longer than it may be");
        if (error && bytes.length < size && !signal?.aborted) throw error;
      });
      if (signal?.aborted) throw new Failed("withdrawn", "the task is not wanted any more"); // reported to no one
      if (sha256(bytes).equals(Buffer.from(blob.sha256))) return bytes;
    }
    throw new Failed("bad-payload", "a blob has not the bytes of its name");
  }

  async place(run) {
    const ask = (value) => this.patiently(() => this.client.call("PlacementService", "Place", value));
    let answer = await ask({ run });
    if (answer.question) {
      const { terms, release, run: asks } = answer.question, payload = within(answer.$bytes, 1, 2);
      agree(terms);
      if (!["describe", "score"].includes(strictly(payload).kind)) throw new Failed("bad-payload", "this device cannot answer the question");
      const found = type("Payload").decode((await this.work.answer(payload, 0, (blob) => this.fetch(blob), () => true)).payload);
      const evidence = found.described ? { descriptor: found.described.descriptor } : { scores: found.scored.scores };
      answer = await ask({ run: release || asks, ...evidence });
    }
    const placement = within(answer.$bytes, 2), { assignment, model } = answer.placement;
    if (type("Placement").encode(answer.placement).finish().length !== placement.length)
      throw new Failed("bad-payload", "the placement has something that this device does not know");
    if (model) this.folder.keep("model", (await this.fetch(model.blob)).toString("base64"));
    console.log(model ? `placed in ${assignment.cluster}` : `not placed: ${assignment.reason}`);
  }
}

const [root, verb, first, ...rest] = process.argv.slice(2);
const folder = root && new Folder(root);
try {
  if (verb === "join") {
    const key = folder.read("key") || newKey();
    folder.keep("key", key); // before anything is sent: a repeated join gets the same certificate
    folder.keep("identity", JSON.stringify(await join(first, rest[0], key, wait)));
    console.log("joined");
  } else if (verb === "train" || verb === "place") {
    const device = new Device(folder, new Work(first, Number(rest[0] ?? 32)));
    await (verb === "train" ? device.train() : device.place(rest[1] ?? "")).finally(() => device.client.close());
  } else {
    console.error("node device.js FOLDER join LINE NAME | train DATA [HIDDEN] | place DATA [HIDDEN] [RUN]");
    process.exitCode = 2;
  }
} catch (error) {
  if (!(error instanceof Failed || error instanceof CallError)) throw error;
  console.error(`error: ${error.message}`);
  process.exitCode = 1;
}
