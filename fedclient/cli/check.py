"""What `fedclient check` found, for people; the trial itself is in `trial.py`, and runs where tasks run."""

from collections.abc import Mapping
from typing import Any

MOST_CLASSES = 20
"""Classes that are listed with their counts."""
NO_LATENT = "none; algorithms that describe data, such as FLUX, need one"


def text(found: Mapping[str, Any]) -> str:
    """The findings of a full trial as lines."""
    lowest, highest = found["range"]
    lines = {
        "samples": _samples(found["samples"]),
        "each": f"shape {_shape(found['shape'])}, {found['dtype']}, from {lowest:.6g} to {highest:.6g}",
        "classes": _classes(found["classes"], found["class_count"]),
        "network": f"{found['parameters']} parameters, {found['bytes']} bytes, on {found['device']}",
        "weights": "out and in again",
        "latent": _shape(found["latent"]) if found["latent"] else NO_LATENT,
    }
    if found["loss"] is not None:
        lines["loss"] = f"{found['loss']:.4g}"
    if found["trained_loss"] is not None:
        lines["training"] = f"one batch of {found['tried_on']}, loss {found['trained_loss']:.4g}"
        accuracy, loss = found["accuracy"], found["evaluated_loss"]
        lines["evaluation"] = f"accuracy {accuracy:.2f}, loss {loss:.4g} on the same batch"
    return "\n".join(f"{name + ':':<12}{value}" for name, value in lines.items())


def _samples(counts: Mapping[str, Any]) -> str:
    test = "no test part" if counts["test"] is None else f"{counts['test']} to test on"
    return f"{counts['train']} to train on, {counts['held_out']} held out, {test}"


def _classes(counts: Mapping[str, int] | None, number: int) -> str:
    """Each class with how many samples it has."""
    if counts is None:
        return "unlabelled: they can be placed and predicted, not trained on"
    listed = ", ".join(f"{count} of class {name}" for name, count in list(counts.items())[:MOST_CLASSES])
    return listed if number <= MOST_CLASSES else f"{listed}, and {number - MOST_CLASSES} classes more"


def _shape(sizes: list[int]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"
