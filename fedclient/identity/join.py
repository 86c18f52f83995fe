"""Joining: from a join string to an identity, in steps each of which can be repeated."""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fedclient.identity.keyring import Asking, Identity, JoiningPort, Keyring, fingerprint_of, identity_of
from fedclient.identity.rpc import enrollment
from fedclient.net.backoff import Backoff, patiently
from fedclient.store.state import DeviceFolder, name_of_machine
from shoal.core.errors import ConfigError, Unavailable
from shoal.core.identity.certificates import certificate, key_from_pem, request
from shoal.core.identity.join import JoinString, parse
from shoal.core.identity.joining import IssuedIdentity, Joining, Pending, Returning
from shoal.core.identity.proof import key_of, prove, sign
from shoal.core.identity.succession import leads
from shoal.core.types import DeviceId
from shoal.shell.console import Console

T = TypeVar("T")

LINE = 4096
"""Characters that are read of a file with a join string."""


def read_join_string(given: str) -> JoinString:
    """The join string itself, or the one in the file of that name, or on standard input for "-".

    Raises ConfigError, which never repeats what was given, since it may be most of a secret.
    """
    if given.startswith("shoal1:"):
        return parse(given)
    try:
        with sys.stdin if given == "-" else Path(given).open() as file:
            return parse(file.read(LINE))
    except (OSError, ValueError):
        hint = "give the output of `fedserver token create`, a file with it, or - for standard input"
        raise ConfigError("that is neither a join string nor a readable file", hint) from None


async def join(
    folder: DeviceFolder,
    line: JoinString,
    device: DeviceId | None,
    console: Console,
) -> tuple[Identity, bool]:
    """The identity of a device folder, and whether it is new; an existing one is kept.

    device: the name to ask for; None: one derived from the key. Waits for an operator's approval where one is
    needed. Raises ConfigError, Refused or Unavailable; repeating the call continues where it ended.
    """
    keyring = Keyring(folder.identity)
    with folder.locked():
        name, known = folder.agreed(device), keyring.identity()
        if known is None:
            identity = await _ask_until_answered(line, keyring, name, console)
            folder.device(identity.device)
            return identity, True
        if name not in (None, known.device) or not _same_server(line, known):
            raise ConfigError(
                f"{folder.root} holds the identity of {known.device} in federation {known.federation}",
                "use another --state for another device or server",
            )
        folder.device(known.device)
        return known, False


async def _ask_until_answered(
    line: JoinString, keyring: Keyring, device: DeviceId | None, console: Console
) -> Identity:
    """On return the identity is on the disk."""
    port, asking = JoiningPort(line.host, line.port, line.pin), keyring.asking()
    name = device or _name_for(asking)
    console.progress(f"asking {port.address} for a certificate for {name}")
    answer = await _when_admitted(lambda: _ask(line, port, asking, name), console)
    if isinstance(answer, Pending):
        console.say(
            f"{name} is waiting for an operator's approval: fedserver device approve {name}\n"
            f"fingerprint of its key: {fingerprint_of(asking.key)}"
        )
    backoff = Backoff()
    while isinstance(answer, Pending):
        await asyncio.sleep(answer.retry_in)
        answer = await patiently(lambda: _ask(line, port, asking, name), backoff, math.inf, console.progress)
    identity = identity_of(asking, answer, port)
    keyring.keep(identity)
    return identity


def _same_server(line: JoinString, known: Identity) -> bool:
    """Whether a join string is of the server that this device knows, whose key may have changed since."""
    own = known.joining_port.pin
    return line.pin == own or leads(line.pin, certificate(known.authority))


async def _when_admitted(ask: Callable[[], Awaitable[T]], console: Console) -> T:
    """Ask, and ask again at the time that the server gives if too many devices ask at once."""
    backoff = Backoff()
    while True:
        try:
            return await ask()
        except Unavailable as error:
            if error.window is None:
                raise
            wait = backoff.next(error.window)
            console.progress(f"{error.message}; trying again in {wait:.0f} s")
        await asyncio.sleep(wait)


async def _ask(
    line: JoinString, port: JoiningPort, asking: Asking, name: DeviceId
) -> IssuedIdentity | Pending:
    async with enrollment(port) as client:
        nonce = (await client.challenge()).nonce
        proof = prove(key_of(line.secret), nonce, client.pin, asking.csr)
        return await client.join(Joining(line.token, nonce, asking.csr, proof, name))


def _name_for(asking: Asking) -> DeviceId:
    """The machine's name and part of the key's fingerprint: the same at every attempt."""
    return name_of_machine(fingerprint_of(asking.key).replace(" ", "")[:6])


async def come_back(keyring: Keyring, identity: Identity) -> Identity | Pending:
    """Ask for another certificate with this device's key: for a new key, if a request for one has no answer
    yet. On return it is on the disk. Raises ShoalErrors."""
    asking = keyring.unanswered()
    async with enrollment(identity.joining_port) as port:
        if asking is None:
            asking = Asking(identity.key, request(key_from_pem(identity.key)))
        nonce = (await port.challenge()).nonce
        signature = sign(key_from_pem(identity.key), nonce, port.pin, asking.csr)
        answer = await port.come_back(Returning(identity.certificate, nonce, asking.csr, signature))
        if isinstance(answer, Pending):
            return answer
    found = replace(identity_of(asking, answer, identity.joining_port), addresses=identity.addresses)
    keyring.keep(found)
    return found


async def change_key(folder: DeviceFolder) -> Identity:
    """Give a device another key; the former one is revoked. Repeating the call continues where it ended.

    Raises ConfigError, Refused or Unavailable.
    """
    keyring = Keyring(folder.identity)
    with folder.locked():
        known = keyring.identity()
        if known is None:
            raise ConfigError(f"there is no identity in {folder.root}", "join first, with: fedclient join")
        keyring.asking()
        found = await come_back(keyring, known)
        if isinstance(found, Pending):
            raise Unavailable(f"{known.device} waits for an operator's approval", "repeat this then")
        return found
