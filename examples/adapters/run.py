"""Eight devices hold digits in four directions; a transformer trains adapters for each direction.

python examples/adapters/run.py
"""

import time
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import sklearn.datasets  # type: ignore[import-untyped]

import shoal
from shoal.core.device_kit.learner import initial_weights
from shoal.shell.learners import from_file

TRAINABLE = ("*adapter*", "head.*")
LEARNER = Path(__file__).with_name("learner.py")


def main() -> None:
    learner = from_file(LEARNER)
    sizes = {name: array.size for name, array in initial_weights(learner, 0).items()}
    train = sum(size for name, size in sizes.items() if any(fnmatch(name, each) for each in TRAINABLE))
    print(f"{train:,} of {sum(sizes.values()):,} parameters train and travel")
    data = sklearn.datasets.load_digits()
    fleet = {
        f"device-{i}": (np.rot90(data.images[i::8] / 16, i % 4, (1, 2)).copy(), data.target[i::8])
        for i in range(8)
    }
    began = time.perf_counter()
    result = shoal.simulate(
        "flux", fleet, model=LEARNER, rounds=20, trainable=" ".join(TRAINABLE), mixing="hard",
        optimizer="adam", learning_rate=0.01, epochs=2, batch_size=32, seed=43,
    )  # fmt: skip
    print(result)
    last = [each for each in result.history if each.trained][-1]
    print(f"in a round of training a device sends {last.bytes_up / len(fleet):,.0f} bytes")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
