"""Runs and devices as text for a terminal, and as plain data for programs."""

import textwrap
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any

from fedserver.coordinator.answers import said
from fedserver.coordinator.status_types import ClusterVersions, RunStatus, RunSummary, ServerStatus
from fedserver.store.records import LogLine, RunSpec
from shoal.core.algorithm import find
from shoal.core.errors import ConfigError
from shoal.core.privacy.report import NAMED, CentralNoise, Statement, of_weights
from shoal.core.texts import listed, measure, percent, plural, span
from shoal.core.types import DeviceId
from shoal.core.verdict import mean_with_error
from shoal.shell.console import continued, one_line

WIDTH = 100
LATEST = 10
"""How many of the latest measured rounds `run show` prints."""

NO_BREAK = "\xa0"


def plain(record: Any) -> dict[str, Any]:
    """A record as JSON, field by field; of a key there is the fingerprint. Clock times are seconds since
    1970."""
    return asdict(record, dict_factory=lambda fields: dict(map(_field, fields)))


def _field(found: tuple[str, Any]) -> tuple[str, Any]:
    name, value = found
    return "fingerprint" if name == "spki" else name, value.value if isinstance(value, Enum) else value


def data(status: RunStatus) -> dict[str, Any]:
    """A run as JSON."""
    models = {
        key: {"sha256": weights.blob.sha256, "size": weights.blob.size, "tensors": len(weights.manifest)}
        for key, weights in status.models.items()
    }
    return {
        **asdict(status.summary),
        **({} if status.spec is None else spec_data(status.spec)),
        "verdict": None if status.verdict is None else status.verdict.facts(),
        "accuracies": status.accuracies,
        "clusters": status.clusters,
        "devices": [asdict(figures) for figures in status.devices],
        "abandoned": status.abandoned,
        "missing": status.missing,
        "answers": dict(status.answers),
        "models": models,
        **private_data(status.released, status.central),
    }


def spec_data(spec: RunSpec) -> dict[str, Any]:
    """What the operator asked for, as JSON. changed: the parameters that differ from the preset's."""
    return {
        "seed": spec.seed,
        "labels": dict(spec.labels),
        "evaluate": spec.evaluate,
        "release": spec.release,
        "channel": spec.base if spec.series else "",
        "every": spec.every,
        "series": spec.series,
        "policy": asdict(spec.policy),
        "learner": {
            "name": spec.learner,
            "options": dict(spec.learner_options),
            "seed": spec.learner_seed,
        },
        "parameters": parameters(spec),
        "changed": sorted(spec.parameters),
        "software": spec.software,
        "initial_weights": spec.initial,
        "digest": spec.digest,
    }


def parameters(spec: RunSpec) -> dict[str, Any]:
    """Every parameter of a run. Only those that were set, if this machine does not have the algorithm."""
    try:
        card, variant = find(spec.algorithm)
        parameters = card.configure(spec.preset, {**variant, **spec.parameters})
    except ConfigError:
        return dict(spec.parameters)
    return {name: getattr(parameters, name) for name in card.settings}


def private_data(
    released: Mapping[DeviceId, Statement], central: CentralNoise | None = None
) -> dict[str, Any]:
    """What devices have released, as JSON. central: the guarantee of the server's noise, if any."""
    return {
        "released": {device: found.facts() for device, found in released.items()},
        "weights": of_weights(released.values()),
        "central": None if central is None else {**asdict(central), "summary": str(central)},
    }


def step(found: RunSummary) -> str:
    """What a run does, without what changes every second. The engine's round number is only in the JSON data:
    it also counts rounds without training, and the title has the number that people know."""
    return f"{found.run}: {found.stage}{', ' if found.title else ''}{found.title}"


def summary(found: RunSummary) -> str:
    """A run in one line."""
    whom = "without" if found.stage == "waiting" else "from"
    devices = f", {whom} {listed(found.waiting_devices)}" if found.waiting_devices else ""
    left = "" if found.time_left is None else f", for at most {found.time_left:.0f} s"
    waiting = f": {found.waiting_for}{devices}{left}" if found.waiting_for else ""
    return one_line(step(found) + waiting + _rest(found) + _next(found))


def _rest(found: RunSummary) -> str:
    """How long the rounds that are left will take, at the pace of the latest ones; "" while that is unknown.

    How long the run has existed says nothing about it: it may have waited for devices, or paused.
    """
    rest = found.rounds - found.progress
    if found.pace is None or found.stage not in ("open", "reducing") or rest <= 0:
        return ""
    left = span(found.pace * rest)
    return f"; about {left} for the {rest} rounds left" if rest > 1 else f"; about {left} for the last round"


def _next(found: RunSummary) -> str:
    return "" if found.next_run is None else f"; next run in {span(found.next_run)}"


def runs(found: Sequence[RunSummary]) -> str:
    if not found:
        return "no run has been started yet; start one with: fedserver run start NAME --algorithm flux"
    rows = [
        (
            each.run,
            each.algorithm,
            each.stage,
            ago(each.created),
            span(_duration(each)),
            f"{each.progress} of {each.rounds}" if each.rounds else str(each.progress),
            str(each.cluster_count or "-"),
            reached(each.accuracy, each.numbers),
            each.waiting_for + _next(each),
        )
        for each in found
    ]
    heads = ("run", "algorithm", "stage", "started", "took", "rounds", "clusters", "accuracy", "why")
    return table(heads, rows)


def status(found: RunStatus) -> str:
    """A run: its progress, settings, accuracy, devices, clusters, privacy and models."""
    parts = [str(found.verdict)] if found.verdict else []
    parts.append(summary(found.summary))
    if answered := said(found.answers):
        parts.append(answered)
    if found.spec is not None:
        parts.append(_settings(found.spec, found.summary.created))
    if found.accuracies:
        parts.append(_accuracies(found.accuracies, measure(found.summary.numbers)))
    if found.devices:
        rows = [
            (
                each.device,
                each.cluster or "-",
                percent(each.accuracy),
                "-" if each.loss is None else f"{each.loss:.4f}",
                str(each.examples or "-"),
                size(each.bytes_up),
                size(each.bytes_down),
            )
            for each in found.devices
        ]
        what = measure(found.summary.numbers)
        heads = ("device", "cluster", what, "loss", "samples", "sent", "fetched")
        parts.append(table(heads, rows))
    if any(found.clusters.values()):
        parts += [
            f"cluster {key}: {plural(len(own), 'device')}{_reached(found, own)}"
            for key, own in found.clusters.items()
        ]
    if found.devices:
        parts.append(f"privacy in this run\n{privacy_table(found.released, found.central)}")
    parts += [f"model {key}: {size(weights.blob.size)}" for key, weights in found.models.items()]
    missing = found.missing.items()
    parts += [f"missing in the last round: {device}: {continued(why)}" for device, why in missing]
    for why, count in Counter(found.abandoned.values()).items():
        parts.append(f"{plural(count, 'round')} without a result: {continued(why)}")
    return "\n".join(parts)


def _reached(found: RunStatus, devices: Collection[DeviceId]) -> str:
    """The mean accuracy of some devices, with two standard errors; "" where none has measured it."""
    figures = [
        (each.accuracy, each.examples)
        for each in found.devices
        if each.device in devices and each.accuracy is not None
    ]
    if not figures:
        return ""
    mean, error = mean_with_error(figures)
    return f", {100 * mean:.1f} ± {200 * error:.1f} %"


def _settings(spec: RunSpec, created: float | None) -> str:
    """What the operator asked for, one line for each kind of setting. Times are in seconds."""
    found, policy = parameters(spec), asdict(spec.policy)
    changed = {name: found[name] for name in found if name in spec.parameters}
    rest = {name: value for name, value in found.items() if name not in changed}
    options = f" with {_pairs(spec.learner_options)}" if spec.learner_options else ""
    rows = [
        ("algorithm", f"{spec.algorithm}, preset {spec.preset}, seed {spec.seed}"),
        ("started", "-" if created is None else f"{clock(created)}, {ago(created)}"),
        ("learner", f"{spec.learner}{options}" if spec.learner else "the one that each device has"),
        ("weights", _first_weights(spec)),
        ("digest", f"{spec.digest[:12]}, by version {spec.software}"),
        ("policy", _pairs(policy) + ("" if spec.policy.devices else " (devices=0: all that are connected)")),
        *([("measures", spec.evaluate or "the initial weights")] if spec.evaluate is not None else []),
        *([("series", _series(spec))] if spec.series else []),
        *([("devices", f"only those with {_pairs(spec.labels)}")] if spec.labels else []),
        ("changed", _pairs(changed) or "none: all parameters are as in the preset"),
        ("unchanged", _pairs(rest)),
    ]
    indent = max(len(head) for head, _ in rows) + 2
    lines = []
    for head, value in rows:
        first = head.ljust(indent)
        lines += textwrap.wrap(value, WIDTH, initial_indent=first, subsequent_indent=" " * indent)
    return "\n".join(lines)


def _first_weights(spec: RunSpec) -> str:
    if spec.release:
        return f"those of release {spec.release}"
    return f"began with {spec.initial[:12]}" if spec.initial else "devices make the first ones"


def _series(spec: RunSpec) -> str:
    every = f": every {span(spec.every)} a run from what the channel {spec.base} has" if spec.every else ""
    return f"{spec.series}{every}"


def _accuracies(found: Mapping[int, float], what: str) -> str:
    """Held-out figures after the latest rounds of training after which they were measured. what: the name."""
    latest = sorted(found.items())[-LATEST:]
    rounds = [f"{percent(accuracy)} after round {number}" for number, accuracy in latest]
    line = f"held-out {what}: {', '.join(each.replace(' ', NO_BREAK) for each in rounds)}"
    return "\n".join(textwrap.wrap(line, WIDTH, subsequent_indent="    ")).replace(NO_BREAK, " ")


def reached(accuracy: float | None, numbers: bool) -> str:
    """An accuracy in a table that has those of classes and of numbers to predict."""
    return f"{percent(accuracy)}{' explained' if numbers and accuracy is not None else ''}"


def _pairs(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={setting(value)}" for name, value in settings.items())


def setting(value: Any) -> str:
    """A value as `--set` takes it.

    Example:
        >>> setting(True), setting(0.5), setting("off")
        ('true', '0.5', 'off')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def clusters(found: Sequence[ClusterVersions]) -> str:
    """The models of a run. found: with versions by how many rounds of training are behind them."""
    if not found:
        return "the run has no model yet"
    rows = [
        (
            each.key,
            str(len(each.members)),
            list(each.versions.values())[-1].sha256[:12],
            ", ".join(f"{number}: {blob.sha256[:8]}" for number, blob in each.versions.items()),
        )
        for each in found
    ]
    return table(("cluster", "devices", "model", "after round N"), rows)


def server(found: ServerStatus) -> str:
    """The server, its runs and its devices, and what these have released."""
    count = Counter(device.presence for device in found.devices)
    here, never = count["idle"] + count["working"], count["expected"]
    parts = [f"fedserver {found.version}: {here} of {len(found.devices)} known devices are connected"]
    if never:
        parts[0] += f", {never} {'has' if never == 1 else 'have'} not called yet"
    parts += [f"attention: {continued(notice)}" for notice in found.notices]
    parts += [summary(run) for run in found.runs] or ["no run is active"]
    if found.devices:
        rows = [
            (
                each.device,
                each.presence,
                "-" if each.last_seen is None else f"{each.last_seen:.0f} s ago",
                each.lease[0] if each.lease else "-",
                each.software or "-",
            )
            for each in found.devices
        ]
        parts.append(table(("device", "state", "last seen", "works on", "software"), rows))
        parts.append(f"privacy over all runs\n{privacy_table(found.released)}")
    elif not found.notices:
        parts.append("no device has joined yet; create a join string with: fedserver token create")
    return "\n".join(parts)


def privacy_table(released: Mapping[DeviceId, Statement], central: CentralNoise | None = None) -> str:
    """What devices have released and with which guarantee, one row for each kind of release."""
    counts = Counter(row for each in released.values() for row in _releases(each))
    rows = [(plural(count, "device"), *row) for row, count in counts.items()]
    if not counts or of_weights(released.values()) not in NAMED:
        subject, _, guarantee = of_weights(released.values()).partition(": ")
        rows.append((subject, "-", guarantee))
    if central is not None:
        subject, _, guarantee = str(central).partition(": ")
        rows.append((subject, "-", guarantee))
    return table(("of", "what left", "guarantee"), rows)


def _releases(found: Statement) -> tuple[tuple[str, str], ...]:
    """What left a device, and the guarantee that it has."""
    rows = [(what, "none") for what in found.unprotected]
    if found.cost:
        rows.append(("the rest" if rows else "everything that left", found.promise))
    return tuple(rows) or (("nothing", "-"),)


def privacy(released: Mapping[DeviceId, Statement], central: CentralNoise | None = None) -> list[str]:
    """The same in sentences, for the metadata of a model: how many devices have released what."""
    counts = Counter(str(each) for each in released.values())
    of_models = [str(central)] if central is not None else []
    devices = [
        f"{f'each of {count} devices' if count > 1 else '1 device'}: {what}" for what, count in counts.items()
    ]
    return [*devices, *of_models, of_weights(released.values())]


def line(found: LogLine) -> str:
    return f"{clock(found.at)} {found.device + ': ' if found.device else ''}{continued(found.text)}"


def clock(at: float) -> str:
    """A clock time, in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def ago(at: float | None) -> str:
    """How long ago a clock time was; "-" for None."""
    return "-" if at is None else f"{span(max(0.0, time.time() - at))} ago"


def _duration(found: RunSummary) -> float | None:
    """How long a run has taken so far, or until it was over; None if that is unknown."""
    if found.created is None or (found.over and found.ended is None):
        return None
    return max(0.0, (found.ended or time.time()) - found.created)


def size(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if value < 1000.0:
            break
        value, unit = value / 1000.0, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell. Cells may have texts of devices."""
    lines = [heads, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    )
