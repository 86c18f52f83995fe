"""`fedclient check`. The check itself is in `fedclient/work/selfcheck.py`, and runs where tasks run."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fedclient.cli.options import configured
from fedclient.config import ClientConfig
from shoal.core.errors import TooFewSamples
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.privacy.budget import DELTA, EPSILON
from shoal.core.privacy.terms import terms
from shoal.core.texts import measure
from shoal.shell.console import Console, Result, verb

MAX_CLASSES = 20
"""Classes that are listed with their counts."""
PROBABILITIES = "probabilities: training has a softmax of its own, so leave out the network's"
NO_LATENT = "none; algorithms that describe data, such as FLUX, need one"


@click.command(epilog="Example: fedclient check --config device.yaml")
@verb
@configured()
@click.pass_obj
def check(console: Console, settings: ClientConfig) -> Result:
    """Try the learner on one batch of the data.

    Prints what the network sees of the data and the result of each part of the learner. No server is asked,
    and the device's folder is not used. Without a learner, the data are read and ONNX Runtime is tried: the
    network then comes from a run.
    """
    from fedclient.agent.service import check

    console.progress("loading the learner and the data")
    found = asyncio.run(check(settings)).findings
    shown = text(found, settings.data.classes if settings.data is not None else ())
    labeled = found.get("regression") or found["classes"] is not None
    return Result(found, shown, _too_few(found["samples"]) if labeled else None)


NUMBERS = "none: labels are numbers to predict"


def text(found: Mapping[str, Any], names: Sequence[str] = ()) -> str:
    """The findings of a full self-check, as lines. names: of class 0, 1 and so on, if they have some."""
    lowest, highest = found["range"]
    lines = {
        "samples": _samples(found["samples"]),
        **_described(found["samples"]),
        "each": f"shape {_shape(found['shape'])}, {found['dtype']}, from {lowest:.6g} to {highest:.6g}",
        "classes": (
            NUMBERS if found.get("regression") else _classes(found["classes"], found["class_count"], names)
        ),
        **_network(found),
    }
    if found.get("loss") is not None:
        lines["loss"] = f"{found['loss']:.4g}"
    if found.get("trained_loss") is not None:
        lines["training"] = f"one batch of {found['tried_on']}, loss {found['trained_loss']:.4g}"
        accuracy, loss = found["accuracy"], found["evaluated_loss"]
        what = measure(bool(found.get("regression")))
        lines["evaluation"] = f"{what} {accuracy:.2f}, loss {loss:.4g} on the same batch"
    return "\n".join(f"{name + ':':<12}{value}" for name, value in lines.items())


def _network(found: Mapping[str, Any]) -> dict[str, str]:
    if "runtime" in found:
        return {"network": f"the graph that a run gives, with {found['runtime']}, which works here"}
    return {
        "network": f"{found['parameters']} parameters, {found['bytes']} bytes, on {found['device']}",
        "weights": "saved and loaded again",
        "latent": _shape(found["latent"]) if found["latent"] else NO_LATENT,
        **({"scores": PROBABILITIES} if found["probabilities"] else {}),
    }


def _samples(counts: Mapping[str, Any]) -> str:
    test = "no test part" if counts["test"] is None else f"{counts['test']} to test on"
    return f"{counts['train']} to train on, {counts['held_out']} held out, {test}"


def _described(counts: Mapping[str, Any]) -> dict[str, str]:
    """What a run with the default settings, in which descriptions have a guarantee, does without."""
    try:
        terms(PrivacySettings("balanced", EPSILON, DELTA), counts["train"] + counts["held_out"], 0)
    except TooFewSamples as error:
        return {"by default": f"{error.message}, so this device trains without a description"}
    return {}


def _too_few(counts: Mapping[str, Any]) -> TooFewSamples | None:
    """With one sample, nothing is left to train on, or to measure with."""
    if counts["train"] + counts["held_out"] > 1:
        return None
    return TooFewSamples("one sample is no data to train on", "give the device more samples")


def _classes(counts: Mapping[str, int] | None, number: int, names: Sequence[str]) -> str:
    """Each class with its number of samples, and its name."""
    if counts is None:
        return "unlabeled: the data can be placed and classified, not trained on"
    known = {str(place): f" ({name})" for place, name in enumerate(names)}
    shown = list(counts.items())[:MAX_CLASSES]
    listed = ", ".join(f"{count} of class {label}{known.get(label, '')}" for label, count in shown)
    return listed if number <= MAX_CLASSES else f"{listed}, and {number - MAX_CLASSES} more classes"


def _shape(sizes: list[int]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"
