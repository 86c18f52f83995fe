"""`fedserver model ...`: the models of a run, one of each cluster."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedserver.cli import text
from fedserver.cli.options import PATH, connected
from shoal.core.errors import ConfigError, NotFound, near
from shoal.shell.console import Console, Group, Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


@click.group(cls=Group)
def model() -> None:
    """List, export and roll back the models of a run."""


@model.command(epilog="Example: fedserver model ls digits")
@verb
@connected
@click.argument("name", metavar="RUN")
def ls(client: "OperatorClient", name: str) -> Result:
    """List the models of a run, one of each cluster, with the versions of them that are kept.

    Each version is the model after a round of training; the last one is the current model. To return to one,
    give its round to `fedserver model rollback`.
    """
    progress = _progress(client, name)
    found = [
        replace(each, versions={progress[n]: blob for n, blob in each.versions.items() if n in progress})
        for each in client.clusters(name)
    ]
    return Result({"run": name, "clusters": list(map(asdict, found))}, text.clusters(found))


def _progress(client: "OperatorClient", name: str) -> dict[int, int]:
    """By the engine's number of each round, how many rounds of training were complete when it opened."""
    return {1: 0} | {each.round + 1: each.progress for each in client.history(name, devices=False)}


@model.command(epilog="Example: fedserver model export digits --cluster c0 --out c0.safetensors")
@verb
@connected
@click.pass_obj
@click.argument("name", metavar="RUN|RELEASE")
@click.option(
    "--cluster", metavar="KEY", help="Cluster whose model to export. Required if there are several."
)
@click.option("--out", type=PATH, metavar="FILE", help="The file to write: .onnx, or else safetensors.")
@click.option(
    "--graph",
    type=PATH,
    metavar="FILE",
    help="With .onnx: the network, by `fedclient export`.  [default: the run's]",
)
@click.option(
    "--folder", type=PATH, metavar="DIR", help="Write the models of all clusters to the folder DIR."
)
@click.option("--mlflow", metavar="URL", help="Send the run and its models to the MLflow server at URL.")
def export(
    console: Console,
    client: "OperatorClient",
    name: str,
    cluster: str | None,
    out: Path | None,
    graph: Path | None,
    folder: Path | None,
    mlflow: str | None,
) -> Result:
    """Write the model of a cluster to a file, or those of all clusters to a folder.

    They are those that the run has now, or those of a release, which may be named by its channel.

    ONNX Runtime opens a file whose name ends in .onnx by itself, and a card that says how to use the model is
    written beside it. The network comes with the first weights of a run, if the device that made them could
    trace it, or by --graph, here or at the start.

    The folder also has the settings of the run (config.json), a model card (README.md) and checksums, and of
    a release its signed card. Each model has a folder in it, which Hugging Face's tools read and, with the
    network, MLflow's. While a run goes on, its models are those with which its present round opened.
    """
    from fedserver.cli.models import folder as folders
    from fedserver.cli.models import onnx, signature
    from fedserver.cli.models.weights import OF_PYTORCH, read_graph_file
    from shoal.shell.weights import save

    if sum(each is not None for each in (out, folder, mlflow)) != 1 or (out is None and (cluster or graph)):
        hint = "--out FILE with --cluster KEY, --folder DIR, or --mlflow URL"
        raise ConfigError("give a file, a folder, or a server of MLflow", hint)
    release = None if name in {each.run for each in client.runs()} else client.release(name)
    if release is not None:
        signature.check(release)
    found = release.status if release else client.show(name)
    known = list(found.models)
    if not known:
        what = "ended before it had a model" if found.summary.over else "has no model yet"
        raise NotFound(f"run {name} {what}")
    if mlflow is not None:
        from fedserver.cli.models.mlflow import send

        console.progress(f"sending {len(known)} models")
        page = send(client, found, release, mlflow)
        return Result({"run": name, "clusters": known, "page": page}, f"run and models are at {page}")
    if folder is not None:
        console.progress(f"fetching {len(known)} models")
        files = [str(path) for path in folders.write_folder(client, found, folder, release)]
        return Result({"run": name, "clusters": known, "files": files}, "\n".join(files))
    assert out is not None
    if out.suffix.lower() in OF_PYTORCH:
        hint = f"--out {out.with_suffix('.safetensors')}, which safetensors.torch.load_file reads"
        raise ConfigError(f"{out} cannot be written in PyTorch's own format, which can run code", hint)
    if cluster is None and len(known) > 1:
        raise NotFound(f"run {name} has {len(known)} models", f"give --cluster: {', '.join(known)}")
    key = known[0] if cluster is None else cluster
    if key not in found.models:
        raise NotFound(f"run {name} has no cluster {key!r}", near(key, known))
    spec, as_onnx = found.spec, out.suffix.lower() == ".onnx"
    network = read_graph_file(graph) if graph else folders.graph_of(client, found) if as_onnx else None
    if as_onnx and network is None:
        raise onnx.no_graph(name, spec)
    console.progress(f"fetching the model of {key}")
    weights = found.models[key]
    in_all = {device: each for device, each in client.status().released.items() if device in found.released}
    privacy = {
        "privacy": "; ".join(text.privacy(found.released, found.central)),
        "privacy_over_all_runs": "; ".join(text.privacy(in_all)),
    }
    learned = {"verdict": str(found.verdict)} if found.verdict else {}
    about = {"run": name, "cluster": key, **learned, **privacy}
    if as_onnx and network is not None:
        about["graph_by"] = spec.graph_by if spec and graph is None else ""
        written = onnx.save(network, client.fetch(weights), out, about)
    else:
        save(client.fetch(weights), out, about)
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
        *([f"{written}: how to use it"] if as_onnx else []),
        *learned.values(),
        f"privacy in this run\n{text.privacy_table(found.released, found.central)}",
        f"privacy of the same devices over all runs\n{text.privacy_table(in_all)}",
    ]
    return Result(facts, "\n".join(said))


@model.command(epilog="Example: fedserver model rollback digits --to-round 7 --cluster c0")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option(
    "--to-round",
    "after",
    type=click.IntRange(min=0),
    required=True,
    metavar="N",
    help="Return to the models after round N.",
)
@click.option(
    "--cluster", "key", default="", metavar="KEY", help="Roll back only this cluster's model.  [default: all]"
)
def rollback(client: "OperatorClient", name: str, after: int, key: str) -> Result:
    """Return to the models after N rounds of training.

    Without --cluster, the whole run returns to that state: its models, its clusters and its progress. Later
    rounds are repeated. With --cluster, only that model is replaced.

    An open round is abandoned and planned again; reports that still arrive for it do not count. A run that is
    over stays over, with the earlier models. A rollback can be undone by another one, to where the run was.
    """
    progress = _progress(client, name)
    kept = {number for each in client.clusters(name) for number in each.versions if number in progress}
    fitting = [number for number in kept if progress[number] == after]
    if not fitting:
        listed = ", ".join(map(str, sorted({progress[number] for number in kept})))
        raise NotFound(
            f"run {name} does not have the models after round {after}", f"it has those after {listed}"
        )
    # The last of several: what was measured after that round, or formed, is part of it.
    status = client.roll_back(name, max(fitting), key)
    what = f"the model of {key}" if key else f"run {name}"
    return Result(
        text.data(status),
        f"{what} was rolled back to the models after round {after}\n{text.summary(status.summary)}",
    )
