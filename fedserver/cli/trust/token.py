"""`fedserver token ...`: the join strings of devices."""

import time
from typing import TYPE_CHECKING, Any

import click

from fedserver.cli.options import connected, seconds
from fedserver.cli.text import clock, plain, table
from fedserver.store.identities.records import Terms, Token
from shoal.core.errors import ConfigError
from shoal.core.identity.joining import Role
from shoal.shell.console import Console, Group, Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


@click.group(cls=Group)
def token() -> None:
    """Create, list and revoke the tokens with which devices join."""


@token.command(epilog="Example: fedserver token create --role infer-only --ttl 10m --device 'ward-*'")
@verb
@connected
@click.pass_obj
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.TRAIN.value,
    show_default=True,
    help="What the devices may do: train, only get a model, or only see how runs stand.",
)
@click.option("--uses", type=int, default=1, show_default=True, metavar="N", help="Let N devices join.")
@click.option(
    "--ttl", default="1h", show_default=True, metavar="TIME", help="Lifetime: 90s, 10m; at most 24h."
)
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label for the devices. Repeatable."
)
@click.option(
    "--device",
    "pattern",
    default="*",
    show_default=True,
    metavar="PATTERN",
    help="Admit only devices whose names match, such as 'ward-*'.",
)
@click.option("--hold", is_flag=True, help="Let each device wait for `fedserver device approve`.")
def create(
    console: Console,
    client: "OperatorClient",
    role: str,
    uses: int,
    ttl: str,
    labels: tuple[str, ...],
    pattern: str,
    hold: bool,
) -> Result:
    """Create a token and print its join string.

    The string is shown only once; anyone who has it can join. Give it to the device's owner, who runs:
    fedclient join STRING
    """
    terms = Terms(Role(role), uses, seconds(ttl), dict(map(_label, labels)), pattern, hold)
    made, join = client.create_token(terms)
    console.say(f"token {made.token}: {made.role.value}, {_uses(made)}, until {clock(made.expires)}")
    return Result({**facts(made), "join": join}, join)


@token.command("ls", epilog="Example: fedserver token ls --json")
@verb
@connected
def list_(client: "OperatorClient") -> Result:
    """List all tokens, oldest first. Their join strings are not stored.

    Only an open token admits devices. The others are used up, expired or revoked, or locked after too many
    wrong proofs.
    """
    found, now = client.tokens(), time.time()
    rows = [
        (each.token, each.state(now), each.role.value, _uses(each), clock(each.expires), each.pattern)
        for each in found
    ]
    text = table(("token", "state", "role", "uses", "expires", "device names"), rows)
    return Result(
        {"tokens": list(map(facts, found))},
        text if found else "there are no tokens; create one with: fedserver token create",
    )


@token.command(epilog="Example: fedserver token revoke 3f9a1c22b07d")
@verb
@connected
@click.argument("name", metavar="TOKEN")
def revoke(client: "OperatorClient", name: str) -> Result:
    """Revoke a token: no further device can join with it.

    Devices that have joined with it are not affected; see `fedserver device revoke`.
    """
    found = client.revoke_token(name)
    return Result(facts(found), f"token {name} is revoked; devices that joined with it: {found.used}")


def facts(token: Token) -> dict[str, Any]:
    """A token as JSON. state: as a list has it; standing: the same, regardless of uses and expiry."""
    return {**plain(token), "state": token.state(time.time())}


def _uses(token: Token) -> str:
    return f"{token.used} of {token.uses} used"


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r} is not NAME=VALUE", "use a form like --label site=basel")
    return name, value
