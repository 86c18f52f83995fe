"""The test vectors of the contract, proto/vectors: `python -m tests.core.exchange.vectors` writes them.

They are made of the tables of our own tests, so that another implementation is tried with what ours is tried
with. `messages/*.bin` are recorded by test_wire_golden and never change.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import BadPayload, ConfigError
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import encode
from shoal.core.identity.join import JoinString
from shoal.core.identity.proof import key_of, prove
from shoal.core.privacy.asks import Asks, RunTerms
from tests.core.exchange import test_admit, test_wire_hostile, test_wire_hostile_payload
from tests.core.exchange.test_wire_golden import FOLDER, GOLDEN, MODEL
from tests.core.exchange.wire_values import Blobs

VECTORS = FOLDER.parent
LARGEST = 16_384
"""Characters of a vector. A message that is longer, even with its runs counted, is left to our own tests."""
RUN = re.compile(rb"(.)\1{63,}", re.DOTALL)
ANSWERED = ("train", "evaluate", "describe", "build")
"""The tasks whose answers there are vectors for."""
Vector = dict[str, Any]
Upload = blob_service_pb2.UploadRequest


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pieces(data: bytes) -> list[list[Any]]:
    """[base64, times] for each piece: a byte that comes often in a row is written once."""
    found, at = list[list[Any]](), 0
    for run in RUN.finditer(data):
        found += [[text(data[at : run.start()]), 1], [text(run[1]), len(run[0])]]
        at = run.end()
    return [each for each in (*found, [text(data[at:]), 1]) if each[0]]


def joined(found: list[list[Any]]) -> bytes:
    return b"".join(base64.b64decode(piece) * times for piece, times in found)


def messages() -> Iterator[Vector]:
    """type: of the message. file or pieces: its bytes. refused: the code, or null."""
    for name, (value, encoder) in GOLDEN.items():
        kind = type(encoder(value)).DESCRIPTOR.full_name
        yield {"name": name, "type": kind, "file": f"messages/{name}.bin", "refused": None}
    for table in (test_wire_hostile, test_wire_hostile_payload):
        for name, (message, _) in table.HOSTILE.items():
            found = pieces(message.SerializeToString(deterministic=True))
            if len(json.dumps(found)) <= LARGEST:
                kind = type(message).DESCRIPTOR.full_name
                yield {"name": name, "type": kind, "pieces": found, "refused": BadPayload.code}


def answers() -> Iterator[Vector]:
    """task, report: payloads. blobs: what they name, by SHA-256. Limits of values need the blobs."""
    admit = test_admit
    trained = admit.TRAINED
    right = [pair for pair in admit.RIGHT if pair[0].kind in ANSWERED]
    wrong: list[tuple[Message, Message, str]] = [
        *((admit.TRAIN, replace(trained, model=model), why) for model, why in admit.WRONG_MODELS),
        *((admit.CLUSTER, replace(trained, descriptor=given), why) for given, why in admit.WRONG_DESCRIPTORS),
        *((admit.PRIVATE, replace(trained, descriptor=given), why) for given, why in admit.WRONG_SUMS),
        *(case for case in admit.WRONG_MEASUREMENTS if case[0].kind in ANSWERED),
    ]
    for task, report in right:
        yield answer(task, report, f"{task.kind}: {report.kind}", None)
    for task, report, why in wrong:
        yield answer(task, report, f"{task.kind}: {why}", BadPayload.code)


def answer(task: Message, report: Message, name: str, refused: str | None) -> Vector:
    blobs = Blobs()
    asked, found = (wire.payload_to_bytes(encode(each, blobs.keep)) for each in (task, report))
    held = {digest: text(data) for digest, data in blobs.held.items()}
    return {"name": name, "task": text(asked), "report": text(found), "blobs": held, "refused": refused}


def uploads() -> Iterator[Vector]:
    """messages: those of one call of BlobService.Upload, in order, each as pieces."""
    blob = wire.blob_to_pb(encode(test_admit.TRAINED, Blobs().keep).weights()[0].blob)
    start = Upload(start=blob_service_pb2.UploadStart(blob=blob))
    late = Upload(start=blob_service_pb2.UploadStart(blob=blob, start=4))

    def chunk(offset: int, data: bytes) -> Upload:
        request = Upload()
        request.chunk.offset, request.chunk.data = offset, data
        return request

    for name, steps, refused in (
        ("from the beginning", [start, chunk(0, b"abcd"), chunk(4, b"ef")], None),
        ("from where the last one ended", [late, chunk(4, b"efgh")], None),
        ("the largest chunk", [start, chunk(0, bytes(1 << 20))], None),
        ("no start", [chunk(0, b"abcd")], BadPayload.code),
        ("two starts", [start, start], BadPayload.code),
        ("a gap", [start, chunk(0, b"abcd"), chunk(5, b"ef")], BadPayload.code),
        ("an overlap", [start, chunk(0, b"abcd"), chunk(3, b"ef")], BadPayload.code),
        ("an empty chunk", [start, chunk(0, b"")], BadPayload.code),
        ("too large a chunk", [start, chunk(0, bytes((1 << 20) + 1))], BadPayload.code),
        ("nothing in a message", [start, Upload()], BadPayload.code),
    ):
        yield {
            "name": name,
            "messages": [pieces(step.SerializeToString()) for step in steps],
            "refused": refused,
        }


def tensors() -> Iterator[Vector]:
    """weights: a message fed.v1.Weights. blob: the bytes that came for it."""
    blobs = Blobs()
    weights = blobs.keep({**MODEL, "empty": np.zeros((0, 3)), "flag": np.array(True)})
    good = blobs.held[weights.blob.sha256]
    named = text(wire.weights_to_pb(weights).SerializeToString())
    for name, data, refused in (
        ("as packed", good, None),
        ("one byte less", good[:-1], BadPayload.code),
        ("one byte more", good + b"\0", BadPayload.code),
        ("one bit is another", bytes((good[0] ^ 1,)) + good[1:], BadPayload.code),
        ("padding that is not zero", good[:8] + b"\1" + good[9:], BadPayload.code),
    ):
        yield {"name": name, "weights": named, "blob": text(data), "refused": refused}


def joins() -> Iterator[Vector]:
    """line: a join string; host, port, pin, token, secret: what it says; proof: of `nonce` and `csr`."""
    pin, secret, nonce, csr = (bytes(range(at, at + 32)) for at in (0, 32, 64, 96))
    for host, port in (("shoal.example.org", 50052), ("127.0.0.1", 1), ("[::1]", 65535)):
        line = JoinString(host, port, pin, "0123456789ab", secret)
        proof = prove(key_of(secret), nonce, pin, csr)
        yield {
            "name": f"{host}:{port}",
            "line": str(line),
            "host": host,
            "port": port,
            "token": line.token,
            **{key: text(value) for key, value in {"pin": pin, "secret": secret, "nonce": nonce}.items()},
            "csr": text(csr),
            "proof": text(proof),
            "refused": None,
        }
    good = str(JoinString("a.example", 5, pin, "0123456789ab", secret))
    for name, bad in (
        ("another version", good.replace("shoal1", "shoal2")),
        ("no port", good.replace(":5:", "::")),
        ("a port that is none", good.replace(":5:", ":70000:")),
        ("one letter less", good[:-1]),
        ("bits that the last letter has too many", good[:-1] + "_"),
        ("a line end inside", good.replace("a.example", "a.ex\nample")),
    ):
        yield {"name": name, "line": bad, "refused": ConfigError.code}


def terms() -> Iterator[Vector]:
    """terms: the text that comes with a task."""
    good = json.loads(str(RunTerms("fedavg", "shoal-fed", (), Asks(20, opened=("weights",)))))
    changed: Mapping[str, Any] = {
        "one field more": {**good, "surprise": 1},
        "one field less": {name: value for name, value in good.items() if name != "tasks"},
        "asks one thing more": {**good, "asks": {**good["asks"], "surprise": 1}},
        "opens what is not known": {**good, "asks": {**good["asks"], "opened": ["everything"]}},
        "a number as a text": {**good, "asks": {**good["asks"], "lessons": "20"}},
        "no number": {**good, "asks": {**good["asks"], "rho": float("nan")}},
    }
    yield {"name": "FedAvg", "terms": json.dumps(good), "refused": None}
    for name, value in changed.items():
        yield {"name": name, "terms": json.dumps(value), "refused": BadPayload.code}
    yield {"name": "no JSON", "terms": "{", "refused": BadPayload.code}
    yield {"name": "a deep list", "terms": "[" * 5000, "refused": BadPayload.code}


FILES = {
    "messages": messages,
    "answers": answers,
    "uploads": uploads,
    "tensors": tensors,
    "joins": joins,
    "terms": terms,
}


def written(name: str) -> str:
    lines = ",\n".join(json.dumps(vector) for vector in FILES[name]())
    return f"[\n{lines}\n]\n"


def read(name: str, folder: Path = VECTORS) -> list[Vector]:
    found: list[Vector] = json.loads((folder / f"{name}.json").read_text())
    return found


if __name__ == "__main__":
    for name in FILES:
        (VECTORS / f"{name}.json").write_text(written(name))
