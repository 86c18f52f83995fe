"""What a model says of data, classes and probabilities or numbers, and the files that it is written to."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from shoal.core.errors import DataFault, NotFound
from shoal.core.types import Array, Tensors
from shoal.shell.disk import replacing


@dataclass(frozen=True, eq=False)
class Prediction:
    """classes: (n,) int64, the likeliest. probabilities: (n, C) float32. accuracy: None without labels.

    values: of regression, (n,) float32, the predicted numbers; classes are then 0, and the accuracy is the
    share of the labels' variance that is explained.
    """

    classes: Array
    probabilities: Array
    accuracy: float | None
    values: Array | None = None

    def counts(self) -> dict[int, int]:
        """How many samples of each class there are."""
        classes, counts = np.unique(self.classes, return_counts=True)
        return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def read_model(path: Path) -> Tensors:
    """The tensors of a safetensors file. Raises NotFound, DataFault."""
    try:
        return safetensors.load_file(path)
    except FileNotFoundError:
        raise NotFound(
            f"there is no model {path}", "run `fedclient place` first, or give one with --model"
        ) from None
    except (SafetensorError, OSError) as error:
        raise DataFault(f"{path} is not a model: {error}", "run `fedclient place` again") from None


def write(path: Path, prediction: Prediction) -> None:
    """An npz file of `classes` and `probabilities`, or of `values`; else csv with a row for each sample."""
    with replacing(path) as file:
        if prediction.values is not None:
            if path.suffix.lower() == ".npz":
                np.savez(file, values=prediction.values)
                return
            lines = [f"{row},{value:.9g}\n" for row, value in enumerate(prediction.values)]
            file.write("".join(["row,value\n", *lines]).encode())
            return
        if path.suffix.lower() == ".npz":
            np.savez(file, classes=prediction.classes, probabilities=prediction.probabilities)
            return
        names = [f"p{c}" for c in range(prediction.probabilities.shape[1])]
        file.write(f"{','.join(['row', 'class', *names])}\n".encode())
        for row, (label, line) in enumerate(zip(prediction.classes, prediction.probabilities, strict=True)):
            file.write(f"{','.join([str(row), str(label), *(f'{p:.6g}' for p in line)])}\n".encode())
