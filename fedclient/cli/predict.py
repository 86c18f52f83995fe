"""`fedclient predict`."""

from pathlib import Path

import click

from fedclient.cli.options import CALLING, PATH, configured
from fedclient.config import ClientConfig
from shoal.shell.console import Console, Result, verb


@click.command(epilog="Example: fedclient predict new.npz --config device.yaml --out classes.csv")
@verb
@configured(*CALLING)
@click.pass_obj
@click.argument("data", type=PATH, required=False)
@click.option(
    "--model",
    metavar="FILE",
    type=PATH,
    help="Model file (safetensors).  [default: the one of fedclient place]",
)
@click.option(
    "--out",
    metavar="FILE",
    type=PATH,
    help="Write classes and probabilities to this file: .npz, or else csv.",
)
def predict(
    console: Console,
    settings: ClientConfig,
    data: Path | None,
    model: Path | None,
    out: Path | None,
) -> Result:
    """Classify DATA, by default the file of the settings, with the model that `fedclient place` fetched.

    If `fedclient place` found several models that may be the right one, each has a share in the
    probabilities; with --model, only that model is used.

    With data.regression, numbers are predicted instead of classes.
    """
    from fedclient.work.predict import classify

    together = model is None
    model = model or settings.state / "model" / "model.safetensors"
    console.progress(f"classifying with {model}")
    found = classify(settings, data, model, out, together)
    seen = ", which it may have been trained on" if data is None else ""
    if found.values is not None:
        low, high = float(found.values.min()), float(found.values.max())
        lines = [f"{len(found.values)} samples: from {low:.6g} to {high:.6g}"]
        if found.accuracy is not None:
            lines.append(f"explained of the labels' variance{seen}: {found.accuracy:.4f}")
        if out is not None:
            lines.append(f"written to {out}")
        measured = {"samples": len(found.values), "lowest": low, "highest": high, "explained": found.accuracy}
        return Result({**measured, "model": model, "out": out}, "\n".join(lines))
    counts = {str(label): count for label, count in found.counts().items()}
    listed = ", ".join(f"{count} of class {found.name(label)}" for label, count in found.counts().items())
    lines = [f"{len(found.classes)} samples: {listed}"]
    if found.accuracy is not None:
        lines.append(f"accuracy on labeled samples{seen}: {found.accuracy:.4f}")
    if out is not None:
        lines.append(f"written to {out}")
    facts = {"samples": len(found.classes), "classes": counts, "accuracy": found.accuracy}
    facts |= {"class_names": list(found.names)} if found.names else {}
    return Result({**facts, "model": model, "out": out}, "\n".join(lines))
