"""Over real TLS: who may call a server that was restored from the past, and who may not."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from fedserver.__main__ import main
from fedserver.authority import issuing
from fedserver.authority.roots import Authority
from fedserver.store.backup import backup, restore
from fedserver.store.identities.audit import FILE, Event
from fedserver.store.store import Store
from shoal.core.errors import ConfigError, Refused
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import new_key, uri_of
from tests.server.authority.peers import Peer, World, lines_of, refused, world

HOUR = 3600.0


class Clock:
    """Time that the tests let pass: within the hours for which a certificate is good beforehand."""

    def __init__(self) -> None:
        self.ahead, self.real = 0.0, time.time

    def __call__(self) -> float:
        return self.real() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.time", clock)
    monkeypatch.setattr("fedserver.authority.clock.counted", lambda: time.monotonic() + clock.ahead)
    return clock


def on(state: Path, story: Callable[[World], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with world(state) as found:
            return await story(found)

    return asyncio.run(run())


def recover(state: Path, *arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["recover", "--state", str(state), *map(str, arguments), "--json"])
    found: dict[str, Any] = json.loads(result.stdout)
    return found


async def renewed(device: Peer, found: World) -> None:
    """The device has its next certificate, and has called with it."""
    key = new_key()
    device.go_on(key, await device.renew(key))
    await hello(device, found)


async def hello(device: Peer, found: World) -> float:
    """Seconds until the device is to renew."""
    device.address = found.listeners.address
    async with device.channel() as channel:
        welcome = await device.link(channel).hello(Hello("toy"))
    assert welcome.renew_in is not None
    return welcome.renew_in


async def denied(device: Peer, found: World) -> str:
    """The code with which the device is turned away."""
    device.address = found.listeners.address
    async with device.channel() as channel:
        _, fault = await refused(device.link(channel).hello(Hello("toy")))
    return fault.code


def lost(tmp_path: Path, clock: Clock, *names: str) -> dict[str, Peer]:
    """Devices that renewed after the backup of a server, which is restored as `b`."""
    state = tmp_path / "a"

    async def until_the_loss(found: World) -> dict[str, Peer]:
        devices = {name: await found.device(name) for name in names}
        await asyncio.to_thread(backup, state, tmp_path / "backup")
        clock.ahead += HOUR
        for device in devices.values():
            await renewed(device, found)
        clock.ahead += HOUR
        return devices

    devices: dict[str, Peer] = on(state, until_the_loss)
    restore(tmp_path / "backup", tmp_path / "b")
    return devices


def test_who_renewed_after_the_backup_is_served_once_the_loss_is_accepted(
    tmp_path: Path, clock: Clock
) -> None:
    state, device = tmp_path / "b", lost(tmp_path, clock, "d0")["d0"]

    async def before(found: World) -> None:
        assert await denied(device, found) == "unauthenticated"

    async def after(found: World) -> None:
        calls = [hello(device, found) for _ in range(4)]  # at once: none of them comes too early
        assert await asyncio.gather(*calls) == [0.0] * 4  # it renews, and then all of it is as ever
        (line,) = lines_of(state, Event.CERTIFICATE_FOUND)
        (certified,) = found.peers.known()[0].certificates
        assert line["facts"] == {
            "device": "d0",
            "serial": certified.serial,
            "issued": certified.issued,
        }
        await renewed(device, found)
        assert await hello(device, found) > HOUR

    async def restarted(found: World) -> None:
        assert await hello(device, found) > HOUR
        assert len(lines_of(state, Event.CERTIFICATE_FOUND)) == 1

    on(state, before)
    said = recover(state)["data"]
    assert (said["restored"], said["accepted"], said["doubts"]) == (True, False, {})
    on(state, before)  # it was only looked at
    assert recover(state, "--accept")["data"]["accepted"]
    assert recover(state, "--accept")["error"]["code"] == "refused"  # there is nothing more to accept
    on(state, after)
    on(state, restarted)


def test_a_certificate_that_is_in_no_row_holds_for_nobody_else(tmp_path: Path, clock: Clock) -> None:
    state, devices = tmp_path / "b", lost(tmp_path, clock, "d0", "d1", "d2")

    def forged(device: Peer, authority: Authority, ago: float, name: str = "") -> Peer:
        """Another certificate for the device, signed by the root, issued this many seconds ago."""
        key, pair = new_key(), authority.roots[authority.issuing]
        made = issuing.device(
            pair.key, pair.certificate, key.public_key(), "clinic", name or device.name, time.time() - ago
        )
        peer = Peer(device.string, device.name, device.address, key)
        assert device.issued is not None
        pem = made.public_bytes(Encoding.PEM)
        peer.issued = replace(device.issued, certificate=pem)
        return peer

    async def story(found: World) -> None:
        authority, clock.ahead = found.peers.authority, clock.ahead + HOUR
        for ago in (3.5 * HOUR, 0.5 * HOUR, 0.0):  # before the backup, and after the loss was accepted
            assert await denied(forged(devices["d0"], authority, ago), found) == "unauthenticated"
        stranger = forged(devices["d0"], authority, 2 * HOUR, "d9")
        assert await denied(stranger, found) == "unauthenticated"
        older = forged(devices["d0"], authority, 2.5 * HOUR)
        await hello(devices["d0"], found)
        assert await denied(older, found) == "unauthenticated"  # a newer one is known by now
        assert await denied(older, found) == "unauthenticated"
        await found.api.revoke("d1", "stolen")
        assert await denied(devices["d1"], found) == "revoked"
        assert len(lines_of(state, Event.CERTIFICATE_FOUND)) == 1
        clock.ahead += 15 * issuing.DAY  # who slept meanwhile comes back with its last key
        asleep = devices["d2"]
        assert await denied(asleep, found) == "unauthenticated"
        asleep.string = replace(asleep.string, port=int(found.listeners.join_address.rpartition(":")[2]))
        error, _ = await refused(asleep.rejoin(new_key(), signature=b"0" * 64))
        assert "does not let this device in" in str(error.details())
        error, _ = await refused(asleep.rejoin(new_key(), certificate=strange("d2")))
        assert "does not let this device in" in str(error.details())
        await asleep.rejoin(new_key())
        assert [line["facts"]["device"] for line in lines_of(state, Event.REJOINED)] == ["d2"]

    recover(state, "--accept")
    on(state, story)


def strange(name: str) -> bytes:
    """A certificate that names a device of ours, by a key of another kind, signed by itself."""
    key, no_name, now = Ed25519PrivateKey.generate(), x509.Name([]), datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri_of("clinic", name))])
    builder = (
        x509.CertificateBuilder().subject_name(no_name).issuer_name(no_name).public_key(key.public_key())
    )
    builder = builder.serial_number(7).not_valid_before(now).not_valid_after(now + timedelta(days=9))
    return builder.add_extension(names, critical=True).sign(key, None).public_bytes(Encoding.PEM)


def test_a_newer_copy_of_the_audit_log_brings_back_who_was_revoked(tmp_path: Path, clock: Clock) -> None:
    state, copy = tmp_path / "a", tmp_path / "backup"

    async def until_the_loss(found: World) -> tuple[dict[str, Peer], Peer]:
        devices = {name: await found.device(name) for name in ("d0", "d1")}
        held = Peer(await found.token(hold=True), "d2")
        await held.join()
        devices["d2"] = held
        line = await found.token(uses=2, ttl=20 * HOUR)
        spare = await found.token()
        await asyncio.to_thread(backup, state, copy)
        clock.ahead += HOUR
        first = replace_key(devices["d0"])
        await renewed(devices["d0"], found)
        superseded = replace_key(devices["d0"])
        clock.ahead += 60.0
        await renewed(devices["d0"], found)
        await found.api.approve("d2")
        await held.join()
        await found.api.rename("d0", "attic")
        await found.api.revoke("d1", "stolen")
        await found.api.revoke_token(spare.token)
        devices["late"] = Peer(line, "late")
        await devices["late"].join()
        clock.ahead += HOUR
        assert first.key != superseded.key
        return devices, superseded

    devices, superseded = on(state, until_the_loss)
    restore(copy, tmp_path / "b")
    with (state / FILE).open("a") as file:
        file.write('{"cut off')
    found = recover(tmp_path / "b", "--accept", "--audit", state / FILE)["data"]
    assert (found["revoked"], found["joined"]) == (["d1"], ["late"])

    async def after(found: World) -> None:
        assert await denied(devices["d1"], found) == "revoked"
        assert await denied(superseded, found) == "unauthenticated"  # the log has a later one
        assert await hello(devices["d0"], found) == 0.0
        assert await hello(devices["d2"], found) == 0.0
        assert await denied(devices["late"], found) == "unauthenticated"
        assert [each.display for each in found.peers.known()] == ["attic", "d1", "d2"]
        tokens = {each.used: each.standing.value for each in await found.api.tokens() if each.uses == 2}
        assert tokens == {1: "open"}
        assert [each.standing.value for each in await found.api.tokens()].count("revoked") == 1

    on(tmp_path / "b", after)


def test_a_certificate_that_was_taken_up_holds_after_a_second_loss(tmp_path: Path, clock: Clock) -> None:
    device, first = lost(tmp_path, clock, "d0")["d0"], tmp_path / "b"
    recover(first, "--accept")
    on(first, lambda found: hello(device, found))  # it is taken up, and the answer to renewing never comes
    clock.ahead += HOUR
    restore(tmp_path / "backup", tmp_path / "c")
    assert recover(tmp_path / "c", "--accept", "--audit", first / FILE)["data"]["accepted"]
    on(tmp_path / "c", lambda found: hello(device, found))


def replace_key(device: Peer) -> Peer:
    """The device as it is now, whatever it does next."""
    peer = Peer(device.string, device.name, device.address, device.key)
    peer.issued = device.issued
    return peer


def test_only_the_continuation_of_the_restored_log_is_taken_over(tmp_path: Path, clock: Clock) -> None:
    lost(tmp_path, clock, "d0")
    log, store = (tmp_path / "a" / FILE).read_text(), Store(tmp_path / "b")
    wrong = tmp_path / "wrong.jsonl"
    for text, why in (
        ("", "does not continue from line"),
        ("".join(log.splitlines(keepends=True)[:2]), "does not continue from line"),
        (log.replace("renewed", "revoked"), "its content was changed"),
    ):
        wrong.write_text(text)
        with pytest.raises(ConfigError, match=why):
            store.identities.gap.take_over(wrong)
    with pytest.raises(ConfigError, match="No such file"):
        store.identities.gap.take_over(tmp_path / "nowhere")
    wrong.write_text(log)
    assert store.identities.gap.take_over(wrong).lines == 1
    assert store.identities.gap.take_over(wrong).lines == 0  # safe to repeat
    assert not store.identities.gap.was_accepted()  # nothing holds before it is accepted
    store.recover()
    with pytest.raises(Refused, match="no restored backup"):
        store.identities.gap.take_over(wrong)
    store.close()
    assert recover(tmp_path / "b", "--audit", wrong)["error"]["code"] == "usage"
