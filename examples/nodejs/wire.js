// The contract: its messages, packed tensors, and calls over gRPC.
import { createHash } from "node:crypto";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protobuf from "protobufjs";

const here = dirname(fileURLToPath(import.meta.url));
const protos = process.env.SHOAL_PROTO ?? join(here, "../../proto");
const library = dirname(createRequire(import.meta.url).resolve("protobufjs/package.json"));
const root = new protobuf.Root();
root.resolvePath = (origin, target) => join(target.startsWith("google/") ? library : protos, target);
const services = ["device", "blob", "placement", "enrollment"].map((name) => `fed/v1/${name}_service.proto`);
root.loadSync([...services, "fed/v1/fault.proto"], { keepCase: true });

export const type = (name) => root.lookupType(`fed.v1.${name}`);
export const sha256 = (bytes) => createHash("sha256").update(bytes).digest();
export const seconds = (duration) => Number(duration.seconds ?? 0) + (duration.nanos ?? 0) / 1e9;
export const duration = (value) => ({ seconds: Math.floor(value), nanos: Math.round((value % 1) * 1e9) });

// The field of a message as the bytes that came, along a path of field numbers.
export function within(bytes, ...path) {
  for (const number of path) {
    const reader = protobuf.Reader.create(bytes);
    let found = null;
    while (reader.pos < reader.len) {
      const tag = reader.uint32();
      if (tag === ((number << 3) | 2)) found = reader.bytes();
      else reader.skipType(tag & 7);
    }
    if (found === null) return null;
    bytes = found;
  }
  return bytes;
}

// A payload is read strictly. This library drops fields that it does not know, so they show in the length.
export function strictly(bytes) {
  const Payload = type("Payload");
  const payload = bytes && Payload.decode(bytes);
  const kind = payload && Payload.oneofs.message.oneof.find((name) => Object.hasOwn(payload, name));
  if (!kind || Payload.encode(payload).finish().length !== bytes.length)
    throw new Failed("bad-payload", "the task has something that this device does not know");
  return { kind, message: payload[kind] };
}

export class Failed extends Error { // what the server is told in place of a result
  constructor(code, message) { super(message); this.code = code; }
}

export class CallError extends Error {
  constructor(status, details, fault) {
    super(`${fault?.code || grpc.status[status]}: ${fault?.message || details}`);
    this.status = status;
    this.code = fault?.code ?? "";
    if (fault?.earliest && fault?.latest) this.window = [seconds(fault.earliest), seconds(fault.latest)];
    const final = [3, 5, 6, 7, 9, 11, 12, 15, 16]; // every other status: the same call may succeed later
    this.again = !final.includes(status);
  }
}

function said(error) {
  const [data] = error.metadata?.get("shoal-fault-bin") ?? [];
  return new CallError(error.code, error.details, data && type("Fault").decode(data));
}

export class Client {
  constructor(address, credentials) {
    this.session = "";
    this.grpc = new grpc.Client(address, credentials, {
      "grpc.ssl_target_name_override": "shoal", // every server's certificate has this name; its key is pinned
      "grpc.default_authority": "shoal",
      "grpc.max_receive_message_length": 4 << 20,
      "grpc.keepalive_time_ms": 60_000,
    });
  }

  close() { this.grpc.close(); }

  _method(service, name) {
    const method = root.lookupService(`fed.v1.${service}`).methods[name];
    const request = type(method.requestType), response = type(method.responseType);
    const metadata = new grpc.Metadata();
    if (this.session) metadata.set("shoal-session", this.session);
    const decode = (bytes) => Object.assign(response.decode(bytes), { $bytes: bytes });
    return [`/fed.v1.${service}/${name}`, (value) => request.encode(value).finish(), decode, metadata];
  }

  call(service, name, value, wait = 0) {
    const [path, encode, decode, metadata] = this._method(service, name);
    const options = { deadline: Date.now() + 1000 * (60 + wait) };
    return new Promise((done, fail) => this.grpc.makeUnaryRequest(
      path, encode, decode, value, metadata, options, (error, answer) => error ? fail(said(error)) : done(answer)));
  }

  async fetch(blob, start, signal) { // the bytes from `start` on, as many as came; more may be lacking
    const [path, encode, decode, metadata] = this._method("BlobService", "Fetch");
    const pieces = [], stream = this.grpc.makeServerStreamRequest(path, encode, decode, { blob, start }, metadata, {});
    signal?.addEventListener("abort", () => stream.cancel());
    let error = null;
    try {
      for await (const { chunk } of stream) {
        if (Number(chunk.offset) !== start) throw new Failed("bad-payload", "a chunk is not where the last one ended");
        pieces.push(chunk.data);
        start += chunk.data.length;
      }
    } catch (problem) {
      if (problem instanceof Failed) throw problem;
      error = said(problem);
    }
    return [Buffer.concat(pieces), error];
  }

  upload(blob, bytes, start) { // how many bytes the server has for sure afterwards
    const [path, encode, decode, metadata] = this._method("BlobService", "Upload");
    return new Promise((done, fail) => {
      const stream = this.grpc.makeClientStreamRequest(
        path, encode, decode, metadata, {}, (error, answer) => error ? fail(said(error)) : done(Number(answer.held)));
      stream.on("error", () => {}); // the callback has it
      stream.write({ start: { blob, start } });
      for (let offset = start; offset < bytes.length; offset += 1 << 18)
        stream.write({ chunk: { offset, data: bytes.subarray(offset, offset + (1 << 18)) } });
      stream.end();
    });
  }
}

// -- tensors: a Map from names to {dtype, shape, data}, in the order of their manifest -------------------------

const ARRAYS = { 2: Float32Array, 3: Float64Array };

export function unpack(weights, bytes) {
  const tensors = new Map();
  let at = 0;
  for (const { name, dtype, shape } of weights.manifest) {
    const sizes = (shape ?? []).map(Number), Type = ARRAYS[dtype];
    if (!Type) throw new Failed("bad-payload", `tensor ${name} is neither float32 nor float64`);
    const size = sizes.reduce((product, each) => product * each, 1) * Type.BYTES_PER_ELEMENT;
    at = Math.ceil(at / 64) * 64;
    if (at + size > bytes.length) throw new Failed("bad-payload", "the tensors are longer than their blob");
    tensors.set(name, { dtype, shape: sizes, data: new Type(Uint8Array.from(bytes.subarray(at, at + size)).buffer) });
    at += size;
  }
  return tensors;
}

export function pack(tensors) { // {weights, bytes}: what a message says of them, and their blob
  const pieces = [], manifest = [];
  let at = 0;
  for (const [name, { dtype, shape, data }] of tensors) {
    const gap = (64 - (at % 64)) % 64;
    pieces.push(Buffer.alloc(gap), Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    at += gap + data.byteLength;
    manifest.push({ name, dtype, shape });
  }
  const bytes = Buffer.concat(pieces);
  return { weights: { manifest, blob: { sha256: sha256(bytes), size: bytes.length } }, bytes };
}
