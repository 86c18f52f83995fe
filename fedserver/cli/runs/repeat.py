"""`fedserver run repeat` and `run compare`: the same run again, and runs side by side."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedserver.cli import text
from fedserver.cli.options import PATH, connected
from fedserver.cli.runs.gain import gains
from fedserver.store.integrity.records import RunSpec
from shoal import __version__
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.exchange.tensors import digest
from shoal.core.inference.graph.model import reference_of
from shoal.core.types import Tensors
from shoal.shell.console import Console, Result, verb

if TYPE_CHECKING:
    from fedserver.coordinator.status_types import RunStatus
    from fedserver.rpc.client import OperatorClient


@click.command(epilog="Example: fedserver run repeat digits digits-again")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.argument("again", metavar="NAME", required=False, default="")
@click.option(
    "--initial-weights", type=PATH, metavar="FILE", help="The weights that RUN began with (safetensors)."
)
def repeat(
    console: Console, client: "OperatorClient", name: str, again: str, initial_weights: Path | None
) -> Result:
    """Start a run with all that RUN was asked for: parameters, seed, policy and learner.

    On the same devices with the same data it trains the same models, bit for bit, unless devices or the
    server add noise for privacy. If RUN began with weights of its own, they are made again of its
    learner, or read from --initial-weights, and have to be the same.
    """
    spec = client.show(name).spec
    assert spec is not None
    weights = _weights(name, spec, initial_weights)
    graph = None
    if spec.graph:
        graph = client.fetch(reference_of(spec.graph, spec.graph_bytes))["graph"].tobytes()
    started = client.start_run(replace(spec, name=again), weights, graph)
    lines = [f"run {started} has started; it repeats {name}"]
    if spec.software != __version__:
        lines.append(
            f"run {name} was started by version {spec.software} and this is {__version__}: "
            "the models may differ"
        )
    return Result({"run": started, "repeats": name, "digest": spec.digest}, "\n".join(lines))


def _weights(name: str, spec: RunSpec, path: Path | None) -> Tensors | None:
    """The initial weights of a run. Raises ConfigError if they are not available, or are others."""
    from fedserver.cli.models.weights import initial_weights
    from fedserver.config import LearnerConfig, RunConfig

    if not spec.initial:
        return None
    hint = "give the file that it began with: --initial-weights FILE"
    learner = None
    if path is None and spec.learner_seed is not None:
        file = Path(spec.learner)
        builtin = None if file.suffix else spec.learner
        learner = LearnerConfig(builtin, None if builtin else file, spec.learner_options, spec.learner_seed)
    if path is None and learner is None:
        raise ConfigError(f"run {name} began with weights that this machine does not have", hint)
    try:
        found = initial_weights(RunConfig(algorithm=spec.algorithm, initial_weights=path, learner=learner))
    except ShoalError as error:
        raise ConfigError(
            f"the weights that run {name} began with are not available any more: {error}", hint
        ) from None
    assert found is not None
    if digest(found) != spec.initial:
        raise ConfigError(
            f"these are other weights than those that run {name} began with "
            f"({digest(found)[:12]} and {spec.initial[:12]})",
            hint,
        )
    return found


@click.command(epilog="Example: fedserver run compare digits-flux digits-fedavg")
@verb
@connected
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
def compare(console: Console, client: "OperatorClient", names: tuple[str, ...]) -> Result:
    """Show runs side by side: accuracy, clusters, rounds, bytes, time, and settings in which they differ.

    If one of them has a single model and another has several, it says what grouping gained.
    """
    found = [client.show(name) for name in names]
    rounds = {name: list(client.history(name, devices=False)) for name in names}
    facts = [_facts(status, rounds[status.summary.run]) for status in found]
    differing = _differing([text.spec_data(status.spec) for status in found if status.spec is not None])
    rows = [
        (
            each["run"],
            each["algorithm"],
            each["stage"],
            text.percent(each["accuracy"]),
            text.percent(each["worst"]),
            str(each["clusters"]),
            str(each["progress"]),
            text.span(each["seconds"]),
            text.size(each["bytes_up"] + each["bytes_down"]),
        )
        for each in facts
    ]
    heads = ("run", "algorithm", "stage", "accuracy", "worst device", "clusters", "rounds", "time", "bytes")
    lines = [text.table(heads, rows)]
    if differing and len(found) > 1:
        named = [(name, *(str(value) for value in values)) for name, values in sorted(differing.items())]
        lines.append(text.table(("setting", *names), named))
    gained = gains(found)
    lines += [each.text() for each in gained]
    data = {"runs": facts, "differing": differing, "gains": list(map(asdict, gained))}
    return Result(data, "\n".join(lines))


def _facts(status: "RunStatus", rounds: list[Any]) -> dict[str, Any]:
    summary = status.summary
    measured = [each.accuracy for each in status.devices if each.accuracy is not None]
    return {
        **asdict(summary),
        "worst": min(measured, default=None),
        "clusters": summary.cluster_count,
        "progress": rounds[-1].progress if rounds else 0,
        "seconds": sum(each.seconds for each in rounds),
        "bytes_up": sum(each.bytes_up for each in rounds),
        "bytes_down": sum(each.bytes_down for each in rounds),
    }


def _differing(specs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The settings whose values are not the same in all runs; "-" in a run that lacks one."""
    flat = [
        {
            "seed": spec["seed"],
            "learner": spec["learner"]["name"],
            **spec["parameters"],
            **{f"policy.{name}": value for name, value in spec["policy"].items()},
        }
        for spec in specs
    ]
    names = sorted({name for each in flat for name in each})
    values = {name: [each.get(name, "-") for each in flat] for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


COMMANDS = (repeat, compare)
