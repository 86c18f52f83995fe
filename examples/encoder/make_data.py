"""Lay out the readers: data/reader-1 ... data/reader-8 and data/newcomer, a folder for each machine.

Each reader gets only images of the digits of its kind, none twice; readers 1 and 5 are of the first kind, 2
and 6 of the second, and so on. The newcomer has 20 labeled images of the second kind. All are of the private
part of split.py: the encoder has seen none of them.
"""

import shutil
from pathlib import Path

import numpy as np
from split import KINDS, private

HERE = Path(__file__).resolve().parent
READERS, TESTS, FEW = 8, 40, 20
NAMES = [f"pixel{number}" for number in range(64)]
LABEL = "digit"


def main() -> None:
    x, y = private()
    data = HERE / "data"
    shutil.rmtree(data, ignore_errors=True)
    for kind, digits in enumerate(KINDS):
        rows = np.flatnonzero(np.isin(y, digits))
        newcomer, test, rest = rows[:FEW], rows[FEW : FEW + TESTS], rows[FEW + TESTS :]
        for place, own in enumerate(np.array_split(rest, READERS // len(KINDS))):
            lay(data / f"reader-{kind + 1 + place * len(KINDS)}", x, y, own, test)
        if kind == 1:
            lay(data / "newcomer", x, y, newcomer, test)
    print(f"written to {data}")


def lay(folder: Path, x: np.ndarray, y: np.ndarray, own: np.ndarray, test: np.ndarray) -> None:
    folder.mkdir(parents=True)
    for file in ("reader.yaml", "learner.py", "encoder.npz"):
        shutil.copy(HERE / file, folder)
    for name, rows in (("images.csv", own), ("test.csv", test)):
        table = np.hstack([x[rows], y[rows, None]])
        header = ",".join([*NAMES, LABEL])
        np.savetxt(folder / name, table, fmt="%g", delimiter=",", header=header, comments="")


if __name__ == "__main__":
    main()
