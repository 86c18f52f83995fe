// From a join string to an identity: a key of the device's own, and a certificate for it.
import { X509Certificate, createHmac, createPrivateKey, createPublicKey, generateKeyPairSync, sign } from "node:crypto";
import tls from "node:tls";
import grpc from "@grpc/grpc-js";
import { Client, Failed, sha256 } from "./wire.js";

export async function join(line, name, pem, wait) { // pem: the key, kept before anything is sent
  const [, host, port, pinText, token, secretText] =
    /^shoal1:(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):(\d+):([\w-]{43}):([\w-]{8,32}):([\w-]{43})$/.exec(line.trim()) ?? [];
  if (!host) throw new Failed("bad-join-string", "that is not a join string; fedserver token create prints one");
  const pin = Buffer.from(pinText, "base64url"), key = createPrivateKey(pem);
  const server = await shown(host.replace(/[[\]]/g, ""), Number(port));
  if (!sha256(server.publicKey.export({ type: "spki", format: "der" })).equals(pin))
    throw new Failed("other-server", "another server answers: its key is not the one in the join string"); // nothing was sent
  const client = new Client(`${host}:${port}`, grpc.credentials.createSsl(Buffer.from(server.toString())));
  try {
    const csr = request(key), secret = sha256(Buffer.from(secretText, "base64url"));
    for (;;) {
      const { nonce } = await client.call("EnrollmentService", "Challenge", {});
      const proof = createHmac("sha256", secret).update(Buffer.concat([nonce, pin, sha256(csr)])).digest();
      const answer = await client.call("EnrollmentService", "Join", { token, nonce, csr, proof, device: name });
      if (answer.identity) {
        const { certificate, authority, address, device } = answer.identity;
        return { key: pem, certificate: `${certificate}`, authority: `${authority}`, address, device };
      }
      console.log(`waiting for an operator: fedserver device approve ${name}`);
      await wait(Math.max(1, Number(answer.pending.retry_in.seconds)));
    }
  } finally {
    client.close();
  }
}

export const newKey = () =>
  generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey.export({ type: "pkcs8", format: "pem" });

export const credentials = ({ authority, key, certificate }) =>
  grpc.credentials.createSsl(Buffer.from(authority), Buffer.from(key), Buffer.from(certificate));

function shown(host, port) { // the certificate there: a TLS handshake, and nothing else is sent
  return new Promise((done, fail) => {
    const options = { host, port, rejectUnauthorized: false, minVersion: "TLSv1.3", ALPNProtocols: ["h2"] };
    const socket = tls.connect(options, () => {
      done(new X509Certificate(socket.getPeerCertificate().raw));
      socket.destroy();
    });
    socket.on("error", fail);
  });
}

function request(key) { // PKCS #10 without a name, DER
  const spki = createPublicKey(key).export({ type: "spki", format: "der" });
  const asked = der(0x30, Buffer.from([2, 1, 0]), der(0x30), spki, der(0xa0));
  const algorithm = der(0x30, Buffer.from("06082a8648ce3d040302", "hex")); // ECDSA with SHA-256
  return der(0x30, asked, algorithm, der(0x03, Buffer.from([0]), sign("sha256", asked, key)));
}

function der(tag, ...parts) {
  const body = Buffer.concat(parts), size = body.length;
  const length = size < 128 ? [size] : size < 256 ? [0x81, size] : [0x82, size >> 8, size & 255];
  return Buffer.concat([Buffer.from([tag, ...length]), body]);
}
