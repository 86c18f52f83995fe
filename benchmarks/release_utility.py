"""What noise leaves of clustering and placement, on synthetic latents: 24 devices in 4 groups, ten classes.

    python -m benchmarks.release_utility [--shift 0.25] [--seeds 5] [--json FILE]

Latents lie in a ball of radius 1, with ten class centers halfway out; each group is moved by `shift` in a
direction of its own. The figures are means over the seeds: the adjusted Rand index of the groups that are
found without their number being given; and, of 24 newcomers without labels, the shares that are placed with
the right group only, that are placed wrongly, and for which noise may have decided. "none" has noise of
10^-6.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from shoal.core.algorithms.flux import Parameters
from shoal.core.algorithms.flux.clustering import form_clusters, place
from shoal.core.errors import Refused
from shoal.core.exchange.parts import Descriptor, FloatArray, PrivacySettings
from shoal.core.privacy.release import release_sums
from shoal.core.privacy.sums import sums_of
from shoal.core.privacy.terms import Terms, terms

DEVICES, GROUPS, CLASSES, DIMS, SPREAD = 24, 4, 10, 10, 0.1
PARAMETERS = Parameters(classes=CLASSES, dims=DIMS)
PROJECTOR = {"mean": np.zeros(DIMS), "components": np.eye(DIMS), "radius": np.array(1.0)}
SETTINGS = {
    "strict, epsilon 1": PrivacySettings("strict", 1.0, 1e-6),
    "explicit, epsilon 1": PrivacySettings("explicit", 1.0, 1e-6),
    "balanced, epsilon 5": PrivacySettings("balanced", 5.0, 1e-6),
    "explicit, epsilon 10": PrivacySettings("explicit", 10.0, 1e-6),
    "none": None,
}


class World:
    """The places of classes and groups under one seed."""

    def __init__(self, seed: int, shift: float) -> None:
        self.chance = np.random.default_rng(seed)
        self.centres = 0.5 * self._directions(CLASSES)
        self.moved = shift * self._directions(GROUPS)

    def _directions(self, count: int) -> FloatArray:
        points = self.chance.normal(size=(count, DIMS))
        unit: FloatArray = points / np.linalg.norm(points, axis=1, keepdims=True)
        return unit

    def describe(
        self, group: int, settings: PrivacySettings | None, samples: int, classes: int
    ) -> Descriptor:
        labels = self.chance.integers(0, CLASSES, samples)
        noise = SPREAD * self.chance.normal(size=(samples, DIMS))
        latents = self.centres[labels] + self.moved[group] + noise
        if settings is None:
            settings, agreed = PrivacySettings("explicit", 1e9, 1e-6), Terms(classes, 1e-6, 1e-6, 5e11)
        else:
            agreed = terms(settings, samples, classes)
        exact = sums_of([(latents, labels)], 1.0, DIMS, agreed.classes)
        return release_sums(exact, settings, agreed, "0" * 64, self.chance.bytes)


def measure(seed: int, shift: float, settings: PrivacySettings | None, samples: int) -> dict[str, float]:
    """The figures under one seed. Raises Refused where so few samples are not described at all."""
    world = World(seed, shift)
    described = {f"d{n:02}": world.describe(n % GROUPS, settings, samples, CLASSES) for n in range(DEVICES)}
    clustering, assigned = form_clusters(PARAMETERS, 1, {}, PROJECTOR, described)
    found = [assigned[device] for device in sorted(assigned)]
    answers = [
        place(PARAMETERS, clustering, world.describe(n % GROUPS, settings, samples, 0))
        for n in range(DEVICES)
    ]
    homes = [{cluster for n, cluster in enumerate(found) if n % GROUPS == group} for group in range(GROUPS)]
    others = [{cluster for n, cluster in enumerate(found) if n % GROUPS != group} for group in range(GROUPS)]
    right = [one.cluster in homes[n % GROUPS] - others[n % GROUPS] for n, one in enumerate(answers)]
    abstained = [one.abstained for one in answers]
    return {
        "ari": float(adjusted_rand_score([n % GROUPS for n in range(DEVICES)], found)),
        "right": float(np.mean([ok and not doubt for ok, doubt in zip(right, abstained, strict=True)])),
        "wrong": float(np.mean([not ok and not doubt for ok, doubt in zip(right, abstained, strict=True)])),
        "abstained": float(np.mean(abstained)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shift", type=float, default=0.25)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    for name, settings in SETTINGS.items():
        for samples in (300, 600, 6000):
            try:
                runs = [measure(seed, asked.shift, settings, samples) for seed in range(asked.seeds)]
            except Refused as refusal:
                print(f"{name:22} n={samples:<5} refused: {refusal}")
                continue
            row = {figure: float(np.mean([run[figure] for run in runs])) for figure in runs[0]}
            rows.append({"mode": name, "samples": samples, "shift": asked.shift, **row})
            print(f"{name:22} n={samples:<5} " + "  ".join(f"{key} {row[key]:.2f}" for key in row))
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
