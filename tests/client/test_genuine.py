"""A release that is not what the server's key has signed is not used, from the network or from the disk."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from grpc import aio
from safetensors.numpy import save_file

from fedclient.agent.allowance import Allowance
from fedclient.config import WorkConfig
from fedclient.identity.keyring import Keyring
from fedclient.net.rpc import RpcLink
from fedclient.placing.asking import Asker
from fedclient.placing.placement import PlacementResult, Placer, save
from fedclient.store.blobs import BlobStore
from fedclient.store.state import GRAPH, MODEL
from fedclient.work.genuine import SIGNATURE, check_stored, checked_apart
from fedclient.work.predictions import GRAPH_DIGEST, files_of, header_of, read_model, sealed
from fedclient.work.runtime import Runtime
from shoal.core.device_kit.learner import initial_weights
from shoal.core.errors import NotGenuine
from shoal.core.exchange.choosing import Choose
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.exchange.payload import BlobRef, encode
from shoal.core.exchange.seal import PURPOSE, Seal, Signed, fingerprint
from shoal.core.exchange.tensors import manifest_of
from shoal.core.types import Tensors
from tests.client.federation import Authority, Federation
from tests.client.in_process import InProcess
from tests.client.memory_server import MemoryLink, MemoryServer, quiet

RELEASE = "r1@3"
LEADER = Authority.made()
GRAPH_BYTES = b"no graph that anything opens here"


def signed(seal: Seal, by: Authority = LEADER) -> Signed:
    return Signed(seal.statement, by.key.sign(PURPOSE + seal.statement, ECDSA(SHA256())))


@pytest.fixture
def model(work: WorkConfig) -> Tensors:
    return initial_weights(Runtime.open(work)._context.learner, 5)


@pytest.fixture
def seal(model: Tensors) -> Seal:
    return Seal(RELEASE, "card", LEADER.pin.hex(), "", {"c1": (fingerprint(model),)})


def placed(server: MemoryServer, work: WorkConfig, store: BlobStore, known: bytes) -> PlacementResult:
    """known: the server's certificate, as the device has it."""
    allowance = Allowance(1 << 20, give_up_after=0.05)
    asker = Asker(MemoryLink(server), store, quiet, allowance, authority=lambda: known)
    return asyncio.run(Placer(asker, InProcess(Runtime.open(work)), quiet).place())


def given(model: Tensors, seal: Signed | None, release: str = RELEASE) -> MemoryServer:
    server = MemoryServer([], seal=seal)
    server.placement = Placement("r1", ClusterAssignment("c1"), server.keep(model), release=release)
    return server


LIES: dict[str, Callable[[Seal], Signed]] = {
    "signed by another key": lambda seal: signed(seal, Authority.made()),
    "another key that says whose it is": lambda seal: signed(replace(seal, key="00" * 32)),
    "no key": lambda seal: signed(replace(seal, key="x")),
    "changed afterwards": lambda seal: replace(signed(seal), statement=replace(seal, card="").statement),
    "of another release": lambda seal: signed(replace(seal, release="r1@2")),
    "of another model": lambda seal: signed(replace(seal, models={"c1": ("00" * 32,)})),
    "of another cluster's model": lambda seal: signed(replace(seal, models={"c2": seal.models["c1"]})),
    "signed with nothing before it": lambda seal: Signed(
        seal.statement, LEADER.key.sign(seal.statement, ECDSA(SHA256()))
    ),
    "no text": lambda seal: Signed(b"\xff", b""),
    "no models": lambda seal: Signed(b'{"models": 3}', b""),
    "deep": lambda seal: Signed(b"[" * 100_000, b""),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_release_that_was_not_signed_so_is_refused_and_the_former_model_stays(
    lie: str, model: Tensors, seal: Seal, work: WorkConfig, store: BlobStore, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    save(placed(given(model, signed(seal)), work, store, LEADER.pem), store, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(NotGenuine):
        save(placed(given(model, LIES[lie](seal)), work, store, LEADER.pem), store, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_graph_is_checked_before_it_is_fetched(
    model: Tensors, seal: Seal, work: WorkConfig, store: BlobStore
) -> None:
    server = given(model, signed(replace(seal, graph="11" * 32)))
    assert server.placement is not None
    server.placement = replace(server.placement, graph=BlobRef("22" * 32, 9))
    with pytest.raises(NotGenuine):
        placed(server, work, store, LEADER.pem)
    assert not server.calls("fetch")


def test_who_has_no_key_to_check_by_asks_for_no_seal_and_an_earlier_server_has_none(
    model: Tensors, work: WorkConfig, store: BlobStore
) -> None:
    server = given(model, None)
    assert placed(server, work, store, b"").release == RELEASE
    assert not server.calls("seal")
    assert placed(server, work, store, LEADER.pem).seal is None
    assert placed(given(model, None, release=""), work, store, LEADER.pem).release == ""


def test_a_server_that_does_not_know_the_call_signs_nothing() -> None:
    async def play() -> None:
        server = aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        link = RpcLink(f"127.0.0.1:{port}", "d1")
        try:
            assert await link.seal(RELEASE) is None
        finally:
            await link.close()
            await server.stop(None)

    asyncio.run(play())


@pytest.fixture
def stored(model: Tensors, seal: Seal, work: WorkConfig, store: BlobStore, tmp_path: Path) -> Path:
    """A mixture of models that came in few bits, on the disk of a device that has joined."""
    Keyring(tmp_path / "identity").keep(Federation(LEADER).identity_for("d1"))
    other = {name: array + np.float32(0.01) for name, array in model.items()}
    choice = compact(Choose((model, other, model), "c0 c1 global", (1.0, 1.0)))
    few = choice.opened(manifest_of(model))
    prints = {key: (fingerprint(each),) for key, each in zip(few.keys, few.models, strict=True)}
    server = MemoryServer([], seal=signed(replace(seal, models=prints)))
    server.question = Question("r1", encode(choice, server.keep), release=RELEASE)
    samples = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=samples)
    newcomer = replace(work, file=tmp_path / "new.npz", labels=False, newcomer=True)
    found = placed(server, newcomer, store, LEADER.pem)
    assert len(found.mixture) > 1
    return save(found, store, tmp_path / "model")


def rewrite(path: Path, tensors: Tensors, **facts: str) -> None:
    """As someone would who knows the format: the digest in the header fits."""
    header = {**header_of(path), **facts}
    header.pop("digest")
    save_file(dict(tensors), path, sealed(tensors, header))


def changed(model: Tensors) -> Tensors:
    return {name: -array for name, array in model.items()}


def spoil_model(path: Path) -> None:
    rewrite(path, changed(read_model(path)))


def spoil_mixture(path: Path) -> None:
    other = next(path.with_name(name) for name in files_of(path, header_of(path)) if name != path.name)
    rewrite(other, changed(read_model(other)))


def spoil_graph(path: Path) -> None:
    path.with_name(GRAPH).write_bytes(GRAPH_BYTES)
    rewrite(path, read_model(path), **{GRAPH_DIGEST: "33" * 32})


def spoil_cluster(path: Path) -> None:
    rewrite(path, read_model(path), cluster="c7")


def spoil_signature(path: Path) -> None:
    rewrite(path, read_model(path), **{SIGNATURE: "no digits"})


@pytest.mark.parametrize("spoil", [spoil_model, spoil_mixture, spoil_graph, spoil_cluster, spoil_signature])
def test_a_stored_model_that_another_hand_has_changed_is_not_used(
    stored: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    check_stored(stored, tmp_path / "identity")
    spoil(stored)
    with pytest.raises(NotGenuine):
        check_stored(stored, tmp_path / "identity")


def test_the_server_is_known_by_its_later_keys_and_no_other_server_is(stored: Path, tmp_path: Path) -> None:
    def knows(authority: Authority) -> None:
        Keyring(tmp_path / "identity").keep(Federation(authority).identity_for("d1"))

    knows(Authority.made(after=Authority.made(after=LEADER)))
    check_stored(stored, tmp_path / "identity")
    assert asyncio.run(checked_apart(stored, tmp_path / "identity")) == ""
    knows(Authority.made())
    with pytest.raises(NotGenuine) as refused:
        check_stored(stored, tmp_path / "identity")
    assert asyncio.run(checked_apart(stored, tmp_path / "identity")) == str(refused.value)


def test_other_files_and_devices_that_have_not_joined_have_nothing_to_check(
    model: Tensors, stored: Path, tmp_path: Path
) -> None:
    spoil_model(stored)
    check_stored(stored, tmp_path / "stranger")
    save_file(dict(model), tmp_path / MODEL)
    check_stored(tmp_path / MODEL, tmp_path / "identity")
