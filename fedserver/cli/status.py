"""`fedserver status` and `fedserver model ...`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedserver.cli import text
from fedserver.cli.options import PATH, connected
from shoal.core.errors import NotFound, Refused, near
from shoal.shell.console import Console, Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


@click.command(epilog="Example: fedserver status --state server")
@verb
@connected
def status(console: Console, client: "OperatorClient") -> Result:
    """What the server does: its devices, and what each run waits for, from whom, and until when."""
    found = client.status()
    return Result({**asdict(found), **text.private_data(found.released)}, text.server(found))


@click.group()
def model() -> None:
    """The models that runs have made."""


@model.command(epilog="Example: fedserver model export digits --cluster c0 --out c0.safetensors")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--cluster", metavar="KEY", help="Whose model.  [default: the only one]")
@click.option("--out", type=PATH, required=True, metavar="FILE", help="The safetensors file to write.")
def export(console: Console, client: "OperatorClient", name: str, cluster: str | None, out: Path) -> Result:
    """Write a model of a run that is over as a safetensors file."""
    from fedserver.cli.weights import save

    found = client.show(name)
    if not found.summary.over:
        raise Refused(f"run {name} is not over", f"wait for it: fedserver run wait {name}")
    known = list(found.models)
    if not known:
        raise NotFound(f"run {name} ended before it had a model")
    if cluster is None and len(known) > 1:
        raise NotFound(f"run {name} has {len(known)} models", f"--cluster is one of {', '.join(known)}")
    key = known[0] if cluster is None else cluster
    if key not in found.models:
        raise NotFound(f"run {name} has no cluster {key!r}", near(key, known))
    console.progress(f"fetching the model of {key}")
    weights = found.models[key]
    in_all = {device: each for device, each in client.status().released.items() if device in found.released}
    privacy = {
        "privacy": "; ".join(text.privacy(found.released, found.central)),
        "privacy_over_all_runs": "; ".join(text.privacy(in_all)),
    }
    save(client.fetch(weights), out, {"run": name, "cluster": key, **privacy})
    facts = {
        "run": name,
        "cluster": key,
        "path": str(out),
        "sha256": weights.blob.sha256,
        **text.private_data(found.released, found.central),
        **privacy,
    }
    said = [
        f"{out}: the model of {key}, {len(weights.manifest)} tensors",
        f"privacy in this run: {privacy['privacy']}",
        f"the same devices over all runs: {privacy['privacy_over_all_runs']}",
    ]
    return Result(facts, "\n".join(said))
