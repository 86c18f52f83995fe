// A network with one hidden layer, and its training. Its latents are the hidden layer.
import { setImmediate as pause } from "node:timers/promises";
import { Failed } from "./wire.js";

const NAMES = ["features.1.weight", "features.1.bias", "head.weight", "head.bias"]; // those of Shoal's "mlp"
const [MEAN, DEVIATION, LINEAR] = ["shoal_input_mean", "shoal_input_deviation", 3];

export const [SGD, ADAM, ADAMW] = [1, 2, 3]; // as in messages.proto

export function random(seed) { // numbers from 0 to 1 that follow from a seed
  let state = Number(BigInt.asUintN(32, BigInt(seed)));
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function built(inputs, hidden, classes, seed) { // first weights
  const chance = random(seed), tensor = (fan, ...shape) => ({
    dtype: 2, shape,
    data: Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => (2 * chance() - 1) / Math.sqrt(fan)),
  });
  const made = [tensor(inputs, hidden, inputs), tensor(inputs, hidden), tensor(hidden, classes, hidden), tensor(hidden, classes)];
  return new Map(NAMES.map((name, number) => [name, made[number]]));
}

export class Network {
  constructor(tensors, inputs, hidden) {
    const classes = tensors.get("head.bias")?.data.length;
    const shapes = [[hidden, inputs], [hidden], [classes, hidden], [classes]];
    NAMES.forEach((name, number) => {
      const found = tensors.get(name);
      if (found?.dtype !== 2 || String(found.shape) !== String(shapes[number]))
        throw new Failed("other-shape", `tensor '${name}' is [${found?.shape}] in the run's model, and [${shapes[number]}] here`);
    });
    Object.assign(this, { tensors, inputs, hidden, classes });
    this.weights = NAMES.map((name) => tensors.get(name).data);
    this.scale = tensors.has(MEAN) ? [tensors.get(MEAN).data, tensors.get(DEVIATION)?.data ?? []] : null;
    if (this.scale?.some((each) => each.length !== inputs)) throw new Failed("bad-payload", "the scale has other features");
  }

  scaled(x) { // in the scale that the model carries: far values grow like their logarithm
    if (!this.scale) return x;
    const [mean, deviation] = this.scale;
    return Float32Array.from(x, (value, i) => {
      const z = (value - mean[i]) / deviation[i], far = Math.abs(z) - LINEAR;
      return far > 0 ? Math.sign(z) * (LINEAR + Math.log1p(far)) : z;
    });
  }

  latent(x) {
    const [weight, bias] = this.weights;
    return Float32Array.from({ length: this.hidden }, (_, j) => {
      let sum = bias[j];
      for (let i = 0, at = j * this.inputs; i < this.inputs; i++) sum += weight[at + i] * x[i];
      return Math.max(sum, 0);
    });
  }

  probabilities(latent) {
    const [, , weight, bias] = this.weights;
    const scores = Array.from(bias, (value, k) => {
      let sum = value;
      for (let j = 0, at = k * this.hidden; j < this.hidden; j++) sum += weight[at + j] * latent[j];
      return sum;
    });
    const most = Math.max(...scores), powers = scores.map((score) => Math.exp(score - most));
    const total = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / total);
  }

  measured({ x, y }) { // of at least one sample
    if (y.length !== x.length) throw new Failed("bad-data", "training and measuring need a label, in y, for each sample in x");
    let right = 0, loss = 0;
    x.forEach((sample, n) => {
      const found = this.probabilities(this.latent(this.scaled(sample)));
      right += found.indexOf(Math.max(...found)) === y[n];
      loss -= Math.log(Math.max(found[y[n]], 1e-30)) / x.length;
    });
    return { accuracy: right / x.length, loss, examples: x.length };
  }

  // Mean loss of the last epoch. wanted: looked at between batches, where heartbeats are sent, too.
  async train({ x, y }, settings, seed, wanted) {
    const samples = x.map((sample) => this.scaled(sample)), chance = random(seed);
    const { rate, momentum, decay, proximal, clip, optimizer } = settings;
    const size = settings.batch || Math.min(Math.max(Math.floor(x.length / 20), 8), 64);
    const epochs = settings.epochs || Math.max(5, Math.ceil(40 / Math.ceil(x.length / size)));
    const start = this.weights.map((each) => each.slice());
    const zeros = () => this.weights.map((each) => new Float64Array(each.length));
    let first = zeros(), second = zeros(), steps = 0, loss = 0;
    for (let epoch = 0; epoch < epochs; epoch++) {
      const order = samples.map((_, n) => n);
      for (let n = order.length - 1; n > 0; n--) {
        const other = Math.floor(chance() * (n + 1));
        [order[n], order[other]] = [order[other], order[n]];
      }
      if (settings.restart) [first, second, steps] = [zeros(), zeros(), 0];
      loss = 0;
      for (let at = 0; at < order.length; at += size) {
        await pause();
        if (!wanted()) return loss;
        const batch = order.slice(at, at + size), slopes = zeros();
        for (const n of batch) loss += this.slope(samples[n], y[n], slopes, batch.length) / order.length;
        this.weights.forEach((weight, w) => weight.forEach((value, i) => {
          slopes[w][i] += (optimizer === ADAMW ? 0 : decay * value) + proximal * (value - start[w][i]);
        }));
        const norm = Math.sqrt(slopes.reduce((sum, each) => each.reduce((a, b) => a + b * b, sum), 0));
        const factor = clip && norm > clip ? clip / norm : 1;
        steps += 1;
        this.weights.forEach((weight, w) => weight.forEach((value, i) => {
          const slope = factor * slopes[w][i];
          if (optimizer === SGD) {
            first[w][i] = momentum * first[w][i] + slope;
            weight[i] -= rate * first[w][i];
            return;
          }
          first[w][i] = 0.9 * first[w][i] + 0.1 * slope;
          second[w][i] = 0.999 * second[w][i] + 0.001 * slope * slope;
          const spread = Math.sqrt(second[w][i] / (1 - 0.999 ** steps)) + 1e-8;
          const fixed = optimizer === ADAMW ? rate * decay * value : 0;
          weight[i] = value - fixed - rate * (first[w][i] / (1 - 0.9 ** steps)) / spread;
        }));
      }
    }
    if (!this.weights.every((each) => each.every(Number.isFinite))) throw new Failed("learner-failed", "training diverged");
    return loss;
  }

  slope(x, label, slopes, batch) { // adds the gradient of one sample's part of the batch's mean loss
    const latent = this.latent(x), found = this.probabilities(latent), back = new Float64Array(this.hidden);
    found.forEach((probability, k) => {
      const error = (probability - (k === label)) / batch, at = k * this.hidden;
      slopes[3][k] += error;
      for (let j = 0; j < this.hidden; j++) {
        slopes[2][at + j] += error * latent[j];
        back[j] += error * this.weights[2][at + j];
      }
    });
    for (let j = 0; j < this.hidden; j++) {
      if (!latent[j]) continue;
      slopes[1][j] += back[j];
      for (let i = 0, at = j * this.inputs; i < this.inputs; i++) slopes[0][at + i] += back[j] * x[i];
    }
    return -Math.log(Math.max(found[label], 1e-30));
  }
}

export function moments(rows) { // of each column: mean and population standard deviation
  const width = rows[0].length, means = new Array(width).fill(0), deviations = new Array(width).fill(0);
  for (const row of rows) for (let i = 0; i < width; i++) means[i] += row[i] / rows.length;
  for (const row of rows) for (let i = 0; i < width; i++) deviations[i] += (row[i] - means[i]) ** 2 / rows.length;
  return [means, deviations.map(Math.sqrt)];
}
