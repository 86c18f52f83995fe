"""Make six clinics and a newcomer out of a real data set: data/clinic-1 ... data/clinic-6, data/newcomer.

Real: the patients. scikit-learn brings the breast-cancer data of Wisconsin (1995): 569 patients, and of each
30 measurements of cell nuclei, and whether the tumor is malignant.

Made here: which clinic a patient goes to, by chance, and what its instrument reports. Instrument A reports
the numbers of the data set. Instrument B differs in two ways, and no column says so:

    unit         it counts lengths in a unit of its own, so lengths are 0.6 and areas 0.36 of A's numbers
    calibration  its scale of shape falls where A's rises; the average patient reads the same on both

So the same number means another thing: a high "worst concavity" is a bad sign at A and a good one at B.

Each folder is what would be on the clinic's own machine: its csv files, the settings and the learner. The
truth about the newcomer lies beside them, only for the last check.
"""

import shutil
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

HERE = Path(__file__).resolve().parent
INSTRUMENTS = {
    "clinic-1": "A",
    "clinic-2": "B",
    "clinic-3": "A",
    "clinic-4": "B",
    "clinic-5": "A",
    "clinic-6": "B",
    "newcomer": "B",
}
PATIENTS = 60
"""Of each clinic. The other 149 patients are everybody's test, as the clinic's instrument reports them."""
SEED = 0
UNITS = {"radius": 0.6, "perimeter": 0.6, "area": 0.36}
SHAPE = ("smoothness", "compactness", "concavity", "concave points", "symmetry", "fractal dimension")
LABEL = "malignant"


def main() -> None:
    found = load_breast_cancer()
    names = [str(name) for name in found.feature_names]
    malignant = 1 - found.target[:, None]  # there, 1 is benign
    reported = {"A": found.data, "B": by_instrument_b(found.data, names)}
    order = np.random.default_rng(SEED).permutation(len(found.data))
    test = order[len(INSTRUMENTS) * PATIENTS :]
    data = HERE / "data"
    shutil.rmtree(data, ignore_errors=True)
    for number, (clinic, instrument) in enumerate(INSTRUMENTS.items()):
        folder = data / clinic
        folder.mkdir(parents=True)
        for file in ("clinic.yaml", "learner.py"):
            shutil.copy(HERE / file, folder)
        own = order[number * PATIENTS : (number + 1) * PATIENTS]
        values = reported[instrument]
        labelled = np.hstack([values, malignant])
        if clinic == "newcomer":
            write(folder / "measurements.csv", names, values[own])
            write(data / "newcomer-truth.csv", [*names, LABEL], labelled[own])
        else:
            write(folder / "measurements.csv", [*names, LABEL], labelled[own])
            write(folder / "test.csv", [*names, LABEL], labelled[test])
    print(f"written to {data}")


def by_instrument_b(values: np.ndarray, names: list[str]) -> np.ndarray:
    """What instrument B reports of patients of whom A reports `values` (n, columns)."""
    reported = values.copy()
    for column, name in enumerate(names):
        if any(shape in name for shape in SHAPE):
            reported[:, column] = 2 * values[:, column].mean() - values[:, column]
        for size, unit in UNITS.items():
            if size in name:
                reported[:, column] *= unit
    return reported


def write(path: Path, names: list[str], table: np.ndarray) -> None:
    np.savetxt(path, table, fmt="%.6g", delimiter=",", header=",".join(names), comments="")


if __name__ == "__main__":
    main()
