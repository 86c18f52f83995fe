// What a task asks for, done on the device's own samples; and what its owner lets leave.
import { readFileSync } from "node:fs";
import { ADAM, ADAMW, Network, SGD, built, moments } from "./learner.js";
import { Failed, pack, sha256, strictly, type, unpack } from "./wire.js";

const LEAVES = ["weights", "summary", "figures", "bounds", "off"]; // edit: what may leave without a guarantee
const TERMS = ["algorithm", "asks", "package", "series", "tasks"];
const ASKS = ["accuracies", "batch_size", "classes", "described_by", "descriptor", "epochs", "lessons", "noise", "opened",
  "reports", "rho", "sums", "training"];
const [OFF, SCALAR, COORDINATE, RAW] = [1, 1, 2, 1];
const own = (message, name, unset) => (message && Object.hasOwn(message, name) ? message[name] : unset);
const numbers = (values) => ({ numbers: Array.from(values) });

export function agree(text) { // throws unless the owner of this device agrees to the terms of a run
  let terms = null;
  try { terms = JSON.parse(text); } catch { /* then it is null */ }
  const has = (value, names) => value && typeof value === "object" && String(Object.keys(value).sort()) === String(names);
  if (!has(terms, TERMS) || !has(terms.asks, ASKS)) throw new Failed("bad-payload", "the terms of the run are not known");
  const { training, descriptor, sums, rho, opened, reports } = terms.asks;
  if (training || descriptor || sums || rho) throw new Failed("refused", "this device cannot add noise or masks");
  const others = [...opened, ...reports].filter((each) => !LEAVES.includes(each));
  if (others.length) throw new Failed("no-consent", `the owner does not let this leave: ${others}`);
}

export class Work {
  constructor(file, hidden) { // every fifth sample is held out; one who only wants a model needs no labels
    const { x, y = [] } = JSON.parse(readFileSync(file, "utf8"));
    const part = (wanted) => ({ x: x.filter((_, n) => wanted(n)), y: y.filter((_, n) => wanted(n)) });
    this.parts = { 1: part((n) => n % 5 < 4), 2: part((n) => n % 5 === 4) };
    this.parts[3] = this.parts[2]; // for a device without a test part, the held-out one is it
    this.everything = { x, y };
    this.sizes = [x[0].length, hidden, Math.max(-1, ...y) + 1];
  }

  // The answer {payload, blobs} to a payload. fetch: gets the bytes of a blob. wanted: whether to go on.
  async answer(bytes, seed, fetch, wanted) {
    const { kind, message } = strictly(bytes);
    if (!Object.hasOwn(Work.prototype, `_${kind}`)) throw new Failed("bad-payload", `this device does not answer ${kind}`);
    const models = new Map();
    for (const weights of [message.model, message.encoder, message.projector, ...(message.models?.weights ?? [])])
      if (weights) models.set(weights, unpack(weights, await fetch(weights.blob)));
    const blobs = new Map(), keep = (tensors) => {
      const { weights, bytes } = pack(tensors);
      blobs.set(weights.blob.sha256.toString("hex"), bytes);
      return weights;
    };
    const payload = await this[`_${kind}`](message, { seed, wanted, keep, of: (weights) => models.get(weights) });
    return { payload: type("Payload").encode(payload).finish(), blobs };
  }

  _network(tensors) {
    const [inputs, hidden, classes] = this.sizes, network = new Network(tensors, inputs, hidden);
    if (classes > network.classes)
      throw new Failed("bad-data", `the label ${classes - 1} is here, and the run's model has ${network.classes} classes`);
    return network;
  }

  _build(message, { seed, keep }) {
    const count = Number(own(message, "models", 1));
    const [model, ...others] = Array.from({ length: count }, (_, n) => keep(built(...this.sizes, BigInt(seed) + BigInt(n))));
    return { built: { model, ...(others.length ? { others: { weights: others } } : {}) } };
  }

  _summarize() {
    const [means, deviations] = moments(this.parts[1].x);
    return { summarized: { means: numbers(means), deviations: numbers(deviations) } };
  }

  _count_latents() { return { latents_counted: { number: this.sizes[1] } }; }

  async _train(message, { seed, wanted, keep, of }) {
    if (message.private) throw new Failed("refused", "this device does not train by DP-SGD");
    const given = message.settings, tensors = of(message.model), network = this._network(tensors);
    const optimizer = own(given, "optimizer", SGD);
    if (![SGD, ADAM, ADAMW].includes(optimizer)) throw new Failed("bad-payload", `optimizer ${optimizer} is not known`);
    const settings = {
      optimizer,
      epochs: Number(own(given, "epochs", 2)), batch: Number(own(given, "batch_size", 64)),
      rate: own(given, "learning_rate", 0.005), momentum: own(given, "momentum", 0.9),
      decay: own(given, "weight_decay", 0), restart: own(given, "restart_momentum", false),
      proximal: own(given, "proximal", 0), clip: own(given, "clip_norm", 0),
    };
    const held_out = network.measured(this.parts[2]); // of the model as it came, and so is the descriptor
    const descriptor = message.projector ? this._described(message, network, this.parts[1], of) : undefined;
    const loss = await network.train(this.parts[1], settings, seed, wanted);
    return { trained: { model: keep(tensors), examples: this.parts[1].x.length, loss, held_out, ...(descriptor && { descriptor }) } };
  }

  _evaluate(message, { of }) {
    if (own(message, "rho", null) !== null) throw new Failed("refused", "this device cannot measure with a guarantee");
    const { x, y } = this.parts[own(message, "part", 2)], network = this._network(of(message.model));
    const commonest = Math.max(...y.map((label) => y.filter((each) => each === label).length));
    const found = { ...network.measured({ x, y }), baseline: commonest / y.length, classes: network.classes };
    const asked = own(message, "bounds", 0);
    if (asked) found.latents = this.sizes[1];
    if (asked === SCALAR || asked === COORDINATE) {
      const latents = this.parts[2].x.map((sample) => network.latent(network.scaled(sample)));
      const columns = asked === SCALAR ? [latents.flatMap((row) => [...row])] : [...latents[0]].map((_, i) => latents.map((row) => row[i]));
      const [low, high] = [Math.min, Math.max].map((end) => columns.map((column) => column.reduce((a, b) => end(a, b))));
      found.bounds = { low, high, provenance: RAW };
    }
    return { evaluated: found };
  }

  _describe(message, { of }) { // without classes it is of all samples
    const part = Number(own(message, "classes", 0)) ? this.parts[1] : this.everything;
    return { described: { descriptor: this._described(message, this._network(of(message.encoder)), part, of), examples: part.x.length } };
  }

  _score(message, { of }) {
    const losses = message.models.weights.map((each) => this._network(of(each)).measured(this.parts[1]).loss);
    return { scored: { scores: { losses, examples: this.parts[1].x.length } } };
  }

  _described(message, network, { x, y }, of) { // moments of projected latents, of all samples and of each class
    if (own(message.privacy, "mode", OFF) !== OFF) throw new Failed("refused", "this device cannot add noise to a descriptor");
    const projector = of(message.projector), mean = projector.get("mean").data, { data, shape } = projector.get("components");
    if (shape[1] !== network.hidden || mean.length !== network.hidden) throw new Failed("bad-payload", "the projector has other latents");
    const rows = x.map((sample) => {
      const latent = network.latent(network.scaled(sample));
      return Array.from({ length: shape[0] }, (_, row) =>
        latent.reduce((sum, value, i) => sum + (value - mean[i]) * data[row * shape[1] + i], 0));
    });
    const classes = Number(own(message, "classes", 0)), found = { means: [], deviations: [], counts: [] };
    if (classes && Math.max(...y) >= classes) throw new Failed("bad-data", "the data have more classes than the run");
    for (let label = -1; label < classes; label++) { // -1: all samples
      const these = rows.filter((_, n) => label < 0 || y[n] === label), few = label >= 0 && these.length < 2;
      const [means, deviations] = few ? [0, 0].map(() => new Array(shape[0]).fill(0)) : moments(these);
      found.means.push(...means);
      found.deviations.push(...deviations);
      found.counts.push(these.length);
    }
    return { ...found, rows: classes + 1, projector: sha256(pack(projector).bytes), privacy: { mode: OFF } };
  }
}
