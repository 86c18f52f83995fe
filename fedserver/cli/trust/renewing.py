"""Renewing an operator's certificate: by a verb, and by itself before it ends."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.core.errors import ShoalError, Unavailable
from shoal.shell.console import Console

if TYPE_CHECKING:
    from fedserver.rpc.channel import Card

AUTOMATIC = 1 / 3
"""The part of its lifetime that a certificate has left at most when it is renewed by itself."""


def renew(folder: Path) -> "Card":
    """Put another certificate for the same key in the folder. Raises ShoalErrors; TooOften if it is new."""
    from fedserver.rpc.channel import read_card, replace_certificate
    from fedserver.rpc.client import AuthorityClient

    client = AuthorityClient(folder)
    with client:
        made, certificate, authorities = client.renew_operator()
    card = replace(read_card(folder), role=made.role.value, expires=made.expires)
    replace_certificate(folder, card, certificate, authorities)
    return card


def keep_valid(folder: Path, console: Console) -> None:
    """Renew the certificate in the folder if it is old. If that fails, the present one is still valid."""
    from fedserver.rpc.channel import left, read_card

    if not 0.0 < left(folder) < AUTOMATIC:
        return
    try:
        renew(folder)
    except Unavailable:
        return  # the verb itself says so
    except ShoalError as error:
        card = read_card(folder)
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(card.expires))
        console.say(
            f"attention: the certificate of operator {card.name} ends on {until}, "
            f"and cannot be renewed: {error.message}"
        )
