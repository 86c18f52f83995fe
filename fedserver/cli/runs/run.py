"""`fedserver run ...`: start, list, show and follow runs; other modules have the other verbs."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedserver.cli import text
from fedserver.cli.algorithm import needed_package
from fedserver.cli.options import PATH, connected, seconds
from fedserver.cli.runs import changes, compare, history, like, placements
from fedserver.cli.runs.policy import POLICY, Devices, policy_options
from fedserver.coordinator.answers import UNKNOWN, said
from fedserver.coordinator.status_types import STAGES, RunStatus
from fedserver.store.records import LogLine, RunSpec
from shoal.core.algorithm import Algorithm, find
from shoal.core.data import histogram
from shoal.core.errors import ConfigError, ShoalError, Unavailable
from shoal.core.texts import measure, percent
from shoal.shell.config import parsed
from shoal.shell.console import Console, Group, Interrupted, Result, printable, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient

AWAY = 60.0
"""Seconds for which a server may be unreachable during `run wait`: a restart is no reason to give up."""


PATIENCE, LOOK = 5.0, 0.2
"""Seconds for which `run start` waits for what devices answer, and between two looks."""


NOT_WITH_FROM = ("algorithm", "preset", "initial_weights", "graph", "evaluate")


class RunFailed(ShoalError):
    """The run that was awaited has failed or was stopped.

    To do: `fedserver run logs`.
    """

    code = "run-failed"


@click.group(cls=Group)
def run() -> None:
    """Start, list, show, follow, change and stop runs."""


@run.command(epilog="Example: fedserver run start digits --devices 8 --minimum 6")
@verb
@connected
@click.pass_obj
@click.argument("name", required=False)
@click.option("-f", "--file", "path", type=PATH, metavar="FILE", help="File that describes the run (YAML).")
@click.option("--like", "other", metavar="RUN", help="Start with all settings of RUN.")
@click.option("--algorithm", metavar="NAME", help="Algorithm, such as fedavg.  [default: flux]")
@click.option("--preset", metavar="NAME", help="Named set of the algorithm's parameters.  [default: default]")
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Parameter of the algorithm. Repeatable."
)
@policy_options(defaults=True)
@click.option("--seed", type=int, metavar="SEED", help="Random seed of sampling and shuffling.  [default: 0]")
@click.option(
    "--initial-weights", type=PATH, metavar="FILE", help="Start from the weights in a safetensors file."
)
@click.option(
    "--graph",
    type=PATH,
    metavar="FILE",
    help="Network for devices without PyTorch, written by `fedclient export`.",
)
@click.option(
    "--evaluate",
    metavar="RELEASE|FILE",
    help="Train nothing; measure a release, or the model in a safetensors file.",
)
@click.option(
    "--from",
    "base",
    metavar="RELEASE|CHANNEL",
    help="Go on from the models and clusters of a release, by its algorithm.",
)
@click.option(
    "--every", metavar="TIME", help="With --from CHANNEL: start another such run after TIME, such as 1d."
)
@click.option(
    "--learner",
    type=PATH,
    metavar="FILE",
    help="Create the initial weights here, with PyTorch, from a learner.py.",
)
def start(
    console: Console,
    /,
    client: "OperatorClient",
    path: Path | None,
    other: str | None,
    changes: tuple[str, ...],
    learner: Path | None,
    **flags: Any,
) -> Result:
    """Start a run.

    NAME must not be taken. Without NAME, the run is named after its algorithm, with a number if needed.
    Without --initial-weights and --learner, up to three devices make the initial weights, and what most of
    them made counts. Command-line options override --file.

    With --evaluate, nothing is trained: each device measures the model of its group on samples that chose
    nothing, the run ends by itself, and `run show` and `release show` say how good each group's model is.

    Waits some seconds for what the connected devices answer, and says how many can take part, how many lack
    their owner's consent, and how many cannot. `fedserver status` and `run show` say it later, too.

    With --from, the run goes on from a release, on devices with the labels that the release's run asked for
    unless --devices names others, and `--set` changes parameters of that run. Devices keep their clusters
    unless the algorithm finds that their data have changed. With --every, NAME-2, NAME-3
    and so on follow, each from what the channel has then, until `run stop`. Devices take part once in each
    version of their data; where too few have new data, a run is skipped when the next one starts.

    With --like, the run gets the parameters, the seed, the policy, the learner, the graph and the initial
    weights of RUN; other options change some of it. On the same devices with the same data it trains the same
    models, bit for bit, unless devices or the server add noise for privacy. Weights that were made of a
    learner are made again, and have to be the same.
    """
    from fedserver.cli.models.weights import graph_of, initial_weights
    from fedserver.config import read_run

    if flags["base"] is not None:
        given = [name for name in NOT_WITH_FROM if flags.get(name) is not None]
        if given or other is not None or learner is not None:
            raise click.UsageError(
                "--from takes algorithm, network and weights of the release: leave them out"
            )
        of = client.release(flags["base"]).status.spec
        assert of is not None
        flags |= {"algorithm": of.algorithm, "preset": of.preset}
    if flags["every"] is not None:
        flags["every"] = seconds(flags["every"])
    if flags["evaluate"] is not None and (other is not None or learner is not None):
        raise click.UsageError("--evaluate goes with neither --like nor --learner")
    if flags["evaluate"] and (file := _model_file(flags["evaluate"])):
        flags |= {"evaluate": "", "initial_weights": file, "algorithm": flags["algorithm"] or "fedavg"}
    if path is not None and other is not None:
        raise click.UsageError("--file and --like exclude each other")
    devices = flags.pop("devices") or Devices()
    flags["policy"] = {name: flags.pop(name) for name in POLICY if name != "devices"} | {
        "devices": devices.number
    }
    flags["labels"] = devices.labels or None
    flags["parameters"] = dict(map(parsed, changes))
    flags["learner"] = {"file": learner}
    found = client.show(other).spec if other else None
    config = read_run(path, flags, like.settings_of(found) if found else None)
    weights, graph, spec = initial_weights(config), graph_of(config), config.spec()
    if other and found:
        weights = weights if config.learner or config.initial_weights else like.weights_of(other, found)
        graph = graph or like.graph_of(client, found)
        spec = spec if config.learner else like.with_learner(spec, found, weights)
    started, cost = client.start_run(spec, weights, graph)
    lines = [f"run {started} has started; see it with: fedserver run show {started}"]
    if cost:
        lines.append(cost)
    console.progress(f"run {started} has started; asking the devices that are connected")
    status = _answered(client, started)
    answers, spec = dict(status.answers), status.spec or spec  # with what it has of a release
    lines.append(said(answers) or "no device is connected yet, so the run waits")
    expected = liars = package = ""
    if spec.evaluate is None:
        card, parameters = _parameters(spec)
        expected = "" if _has_clusters(status) else card.clustering(parameters)
        liars, package = card.influence(parameters), needed_package(card)
    lines += [f"{spec.algorithm}: {each}" for each in (expected, liars) if each]
    if package:
        lines.append(f"{spec.algorithm}: devices need the package {package}, too")
    data: dict[str, Any] = {
        "run": started,
        "cost": cost or None,
        "answers": answers,
        "clustering": expected or None,
        "liars": liars or None,
        "devices_need": package or None,
    }
    if found:
        data["differing"] = differing = compare.differing([found, spec])
        lines.append(
            f"it differs from {other} in: {', '.join(differing)}" if differing else f"it repeats {other}"
        )
    return Result(data, "\n".join(lines))


def _model_file(evaluate: str) -> Path | None:
    """The file that --evaluate names; None for a release. Raises ConfigError for one of another format."""
    from fedserver.cli.models.weights import OF_PYTORCH

    file = Path(evaluate)
    if file.suffix == ".safetensors":
        return file
    if file.suffix in (".onnx", *OF_PYTORCH) or file.is_file():
        raise ConfigError(
            f"--evaluate takes a release or a safetensors file, and {file} is neither",
            "write the weights of the devices' network, with their names: "
            "safetensors.torch.save_file(model.state_dict(), 'model.safetensors'); "
            "or fedserver model export RUN --cluster c0 --out c0.safetensors",
        )
    return None


def _answered(client: "OperatorClient", run: str) -> RunStatus:
    """A run with what the devices answer that are connected; `PATIENCE` ends the wait for those that take
    longer."""
    until = time.monotonic() + PATIENCE
    while True:
        found = client.show(run)
        waits = UNKNOWN in found.answers.values() and not found.summary.over
        if not waits or time.monotonic() >= until:
            return found
        time.sleep(LOOK)


def _has_clusters(status: RunStatus) -> bool:
    """Whether a run goes on with the clusters of a release, and so forms none first."""
    from shoal.core.server_kit.clustered import GLOBAL

    return bool(status.spec and status.spec.release) and status.clusters.keys() != {GLOBAL}


def _parameters(spec: RunSpec) -> tuple[Algorithm, Any]:
    card, variant = find(spec.algorithm)
    return card, card.configure(spec.preset, {**variant, **spec.parameters})


@run.command("ls", epilog="Example: fedserver run ls --stage finished --last 5")
@verb
@connected
@click.option(
    "--stage",
    type=click.Choice(["active", "over", *STAGES]),
    help="Only runs at this stage; active: those that are not over.",
)
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the N newest.")
def ls(client: "OperatorClient", stage: str | None, last: int | None) -> Result:
    """List the runs, newest first."""
    found = client.runs()
    runs = [each for each in found if stage in (None, each.stage, "over" if each.over else "active")][:last]
    return Result({"runs": list(map(vars, runs))}, text.runs(runs))


@run.command(epilog="Examples: fedserver run show digits; fedserver run show digits-flux digits-fedavg")
@verb
@connected
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--newcomers", is_flag=True, help="Show what each newcomer was answered, how sure that is, and why."
)
def show(client: "OperatorClient", names: tuple[str, ...], newcomers: bool) -> Result:
    """Show a run: its parameters, progress, devices, newcomers and models, and what was released.

    Several runs are shown side by side: accuracy, clusters, rounds, bytes, time, and the settings in which
    they differ. If one of them has a single model and another has several, it says what grouping gained.

    A newcomer that compares the models on its own samples keeps its choice: the server only knows which
    models it gave away. The latest 20 answers to each device are kept, and 10,000 in all.
    """
    if len(names) > 1:
        if newcomers:
            raise click.UsageError("--newcomers is for one run")
        return compare.side_by_side(client, names)
    status, found = client.show(names[0]), list(client.placements(names[0]))
    data, said = text.data(status), placements.counted(found)
    if newcomers:
        data["placements"] = list(map(vars, found))
        said = placements.listed(found) if found else "no newcomer has asked for a model of this run"
    counted = _statistics(client, status)
    data["statistics"] = {name: each.facts() for name, each in counted.items()}
    shown = histogram.text(counted)
    return Result(data, "\n".join(filter(None, (shown, text.status(status), said))))


def _statistics(client: "OperatorClient", status: RunStatus) -> dict[str, histogram.Statistics]:
    """What the models of a run say, where they are histograms."""
    histograms = {
        key: client.fetch(weights)
        for key, weights in status.models.items()
        if any(tensor.name == histogram.EDGES for tensor in weights.manifest)
    }
    return histogram.statistics_of(histograms)


@run.command(epilog="Example: fedserver run wait digits --timeout 600")
@verb
@connected
@click.pass_obj
@click.argument("name", metavar="RUN")
@click.option("--timeout", type=float, metavar="SECONDS", help="Give up after SECONDS.  [default: never]")
def wait(console: Console, client: "OperatorClient", name: str, timeout: float | None) -> Result:
    """Wait until a run is over.

    Exits with code 1 if the run failed or was stopped, and with code 6 at --timeout. The server may be
    restarted in the meantime.
    """
    with _that_goes_on(name):
        status = _over(console, client, name, timeout)
    stage, error = status.summary.stage, None
    if stage != "finished":
        auxiliary = "was" if stage == "stopped" else "has"
        error = RunFailed(f"run {name} {auxiliary} {stage}: {status.summary.waiting_for}")
    return Result(text.data(status), text.status(status), error)


@contextmanager
def _that_goes_on(run: str) -> Iterator[None]:
    """Around a look at a run, which Ctrl-C ends, and not the run."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; run {run} is as it was", f"fedserver run show {run}") from None


def _over(console: Console, client: "OperatorClient", name: str, timeout: float | None) -> RunStatus:
    """The run, once it is over."""
    until = None if timeout is None else time.monotonic() + timeout
    status, seen = client.show(name), time.monotonic()
    shown: tuple[str, int, str] | None = None
    measured = max(status.accuracies, default=0)
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    while not status.summary.over:
        try:
            left = None if until is None else max(0.0, until - time.monotonic())
            for status in client.watch(name, left):
                found = status.summary
                for number, accuracy in status.accuracies.items():
                    if number > measured:
                        what = measure(found.numbers)
                        console.say(f"{found.run}: after round {number}: held-out {what} {percent(accuracy)}")
                        measured = number
                step = (found.stage, found.round, found.title)
                if live or step != shown:
                    # What it waits for may never come, as where no owner consents.
                    why = f": {found.waiting_for}" if found.stage == "waiting" else ""
                    console.progress(text.summary(found) if live else f"{text.step(found)}{why}")
                shown = step
                seen = time.monotonic()
        except Unavailable:
            if time.monotonic() - seen > AWAY:
                raise
            time.sleep(1.0)
    return status


@run.command(epilog="Example: fedserver run logs digits --follow")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option("--follow", is_flag=True, help="Keep printing new lines until the run is over.")
def logs(client: "OperatorClient", name: str, follow: bool) -> Result:
    """Print the log of a run, including which devices failed. Their owners see why in `fedclient status`."""
    lines: list[LogLine] = []
    with _that_goes_on(name):
        while True:
            last = not follow or client.show(name).summary.over
            for line in client.log(name, lines[-1].number if lines else 0):
                click.echo(printable(text.line(line)))
                lines.append(line)
            if last:
                return Result({"lines": list(map(vars, lines))}, "")
            time.sleep(1.0)


for each in (*changes.COMMANDS, history.history):
    run.add_command(each)
