"""Runs side by side: their results, the settings in which they differ, and what grouping gained."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedserver.cli import text
from fedserver.cli.runs.gain import gains
from fedserver.coordinator.status_types import RunStatus
from fedserver.store.records import RunSpec
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.texts import span
from shoal.shell.console import Result

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


def side_by_side(client: "OperatorClient", names: Sequence[str]) -> Result:
    """Accuracy, clusters, rounds, bytes and time of these runs, and the settings in which they differ."""
    found = [client.show(name) for name in names]
    facts = [_facts(each, list(client.history(each.summary.run, devices=False))) for each in found]
    differ = differing([each.spec for each in found if each.spec is not None])
    rows = [
        (
            each["run"],
            each["algorithm"],
            each["stage"],
            text.reached(each["accuracy"], each["numbers"]),
            text.reached(each["worst"], each["numbers"]),
            str(each["clusters"]),
            str(each["progress"]),
            span(each["seconds"]),
            text.size(each["bytes_up"] + each["bytes_down"]),
        )
        for each in facts
    ]
    heads = ("run", "algorithm", "stage", "accuracy", "worst device", "clusters", "rounds", "time", "bytes")
    lines = [text.table(heads, rows)]
    gained = gains(found)
    lines += [each.text() for each in gained]
    shared = {name: values for name, values in differ.items() if "-" not in values}
    if shared:
        named = [(name, *(str(value) for value in values)) for name, values in shared.items()]
        lines.append(text.table(("setting", *names), named))
    if rest := len(differ) - len(shared):
        lines.append(f"settings that not all of them have: {rest}, in --json")
    data = {"runs": facts, "differing": differ, "gains": list(map(asdict, gained))}
    return Result(data, "\n".join(lines))


def _facts(status: RunStatus, rounds: Sequence[RoundHistory]) -> dict[str, Any]:
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


def differing(specs: Sequence[RunSpec]) -> dict[str, list[Any]]:
    """The settings whose values are not the same in all runs, by name; "-" in a run that lacks one."""
    flat = list(map(_flat, specs))
    names = sorted({name for each in flat for name in each})
    values = {name: [each.get(name, "-") for each in flat] for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def _flat(spec: RunSpec) -> dict[str, Any]:
    """All that a run starts from, apart from its name."""
    return {
        "algorithm": spec.algorithm,
        "preset": spec.preset,
        "seed": spec.seed,
        "software": spec.software,
        "weights": spec.initial[:12] or "-",
        "graph": spec.graph[:12] or "-",
        "learner": spec.learner or "-",
        **{f"learner.{name}": value for name, value in spec.learner_options.items()},
        **{f"label.{name}": value for name, value in spec.labels.items()},
        **{f"policy.{name}": value for name, value in asdict(spec.policy).items()},
        **text.parameters(spec),
    }
