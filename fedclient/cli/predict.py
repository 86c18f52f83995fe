"""`fedclient predict`."""

from pathlib import Path

import click

from fedclient.cli.options import PATH, configured
from fedclient.config import ClientConfig
from shoal.shell.console import Console, Result, verb


@click.command(epilog="Example: fedclient predict new.npz --config device.yaml --out classes.csv")
@verb
@configured("state")
@click.argument("data", type=PATH, required=False)
@click.option("--model", type=PATH, help="Model file (safetensors).  [default: the one of fedclient place]")
@click.option("--out", type=PATH, help="Write classes and probabilities to this file: .npz, or else csv.")
def predict(
    console: Console, settings: ClientConfig, data: Path | None, model: Path | None, out: Path | None
) -> Result:
    """Classify DATA, by default the file of the settings, with the model that `fedclient place` fetched.

    With data.regression, numbers are predicted instead of classes.
    """
    from fedclient.faults import torch_required

    with torch_required():
        from fedclient.work.predict import classify

    model = model or settings.state / "model" / "model.safetensors"
    console.progress(f"classifying with {model}")
    found = classify(settings, data, model, out)
    if found.values is not None:
        low, high = float(found.values.min()), float(found.values.max())
        lines = [f"{len(found.values)} samples: from {low:.6g} to {high:.6g}"]
        if found.accuracy is not None:
            lines.append(f"explained of the labels' variance: {found.accuracy:.4f}")
        if out is not None:
            lines.append(f"written to {out}")
        measured = {"samples": len(found.values), "lowest": low, "highest": high, "explained": found.accuracy}
        return Result({**measured, "model": model, "out": out}, "\n".join(lines))
    counts = {str(label): count for label, count in found.counts().items()}
    lines = [f"{len(found.classes)} samples: " + ", ".join(f"{n} of class {c}" for c, n in counts.items())]
    if found.accuracy is not None:
        lines.append(f"accuracy on labeled samples: {found.accuracy:.4f}")
    if out is not None:
        lines.append(f"written to {out}")
    facts = {"samples": len(found.classes), "classes": counts, "accuracy": found.accuracy}
    return Result({**facts, "model": model, "out": out}, "\n".join(lines))
