"""The vectors are what our tables give, and our decoders accept or refuse each as it says."""

import base64
import hashlib
from collections.abc import Callable, Mapping

import pytest

from shoal.core.errors import BadPayload, ShoalError
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import parts_pb2
from shoal.core.exchange.admit import admit_message, admit_payload
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import decode
from shoal.core.exchange.tensors import unpack
from shoal.core.identity.join import parse
from shoal.core.identity.proof import key_of, prove
from shoal.core.privacy.asks import read_terms
from tests.core.exchange import test_wire_golden
from tests.core.exchange.vectors import FILES, VECTORS, Vector, joined, read, written
from tests.core.exchange.wire_values import DECODERS, Blobs

BY_NAME = {cls.DESCRIPTOR.full_name: cls for cls in DECODERS}
KINDS: Mapping[str, type[Message]] = {cls.kind: cls for cls in test_wire_golden.MESSAGES}


def message(vector: Vector) -> None:
    data = (VECTORS / vector["file"]).read_bytes() if "file" in vector else joined(vector["pieces"])
    cls = BY_NAME[vector["type"]]
    DECODERS[cls](wire.message_from_bytes(cls, data))


def answer(vector: Vector) -> None:
    blobs = Blobs()
    blobs.held = {name: base64.b64decode(data) for name, data in vector["blobs"].items()}
    task, report = (wire.payload_from_bytes(base64.b64decode(vector[name])) for name in ("task", "report"))
    asked = decode(task, KINDS, blobs.load)
    admit_payload(asked, report)
    admit_message(asked, decode(report, KINDS, blobs.load))


def upload(vector: Vector) -> None:
    first, *others = map(joined, vector["messages"])
    _, offset = wire.upload_start(first)
    for each in others:
        offset += len(wire.uploaded(each, offset))


def tensors(vector: Vector) -> None:
    weights = wire.weights_from_pb(parts_pb2.Weights.FromString(base64.b64decode(vector["weights"])))
    data = base64.b64decode(vector["blob"])
    unpack(weights.manifest, memoryview(data))
    if hashlib.sha256(data).hexdigest() != weights.blob.sha256:
        raise BadPayload("these are not the bytes of the blob's name")


def join(vector: Vector) -> None:
    line = parse(vector["line"])
    pin, secret, nonce, csr, proof = (
        base64.b64decode(vector[name]) for name in ("pin", "secret", "nonce", "csr", "proof")
    )
    assert (line.host, line.port, line.token) == (vector["host"], vector["port"], vector["token"])
    assert (line.pin, line.secret) == (pin, secret)
    assert prove(key_of(line.secret), nonce, line.pin, csr) == proof


def terms(vector: Vector) -> None:
    read_terms(vector["terms"])


READERS: Mapping[str, Callable[[Vector], None]] = {
    "messages": message,
    "answers": answer,
    "uploads": upload,
    "tensors": tensors,
    "joins": join,
    "terms": terms,
}


@pytest.mark.parametrize("name", FILES)
def test_each_vector_is_accepted_or_refused_as_it_says(name: str) -> None:
    vectors, wrong = read(name), list[str]()
    assert {each["refused"] is None for each in vectors} == {True, False}
    for vector in vectors:
        try:
            READERS[name](vector)
            code = None
        except ShoalError as error:
            code = error.code
        if code != vector["refused"]:
            wrong.append(f"{vector['name']}: {code}, not {vector['refused']}")
    assert not wrong


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_what_the_tables_give(name: str) -> None:
    assert (VECTORS / f"{name}.json").read_text() == written(name), (
        "run: python -m tests.core.exchange.vectors"
    )
