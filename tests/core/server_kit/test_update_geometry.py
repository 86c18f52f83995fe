"""One pass over all updates of a round: their lengths, and how they lie to their middle."""

import math

import numpy as np
import pytest

from shoal.core.exchange.tensors import BLOCK
from shoal.core.server_kit.aggregation.update_geometry import geometry_of, norm
from shoal.core.types import Tensors

LARGE = BLOCK + BLOCK // 2 + 7
FLOATS = ("long", "short")


def fleet(devices: int, dtype: str = "float32") -> tuple[Tensors, dict[str, Tensors]]:
    """A model with a counter and a tensor of more than one block, and reports of it."""
    chance = np.random.default_rng(devices)
    base: Tensors = {
        "count": np.array([4, 7]),
        "long": chance.normal(size=LARGE).astype(dtype),
        "short": chance.normal(size=(3, 5)).astype(np.float32),
    }
    moved: dict[str, Tensors] = {
        f"d{place:02}": {
            name: array + (0.01 * chance.normal(size=array.shape)).astype(array.dtype)
            for name, array in base.items()
        }
        for place in range(devices)
    }
    return base, moved


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("together", [1 << 25, 1 << 14])
def test_lengths_and_angles_are_those_of_whole_updates(dtype: str, together: int) -> None:
    base, models = fleet(4, dtype)
    origins = dict.fromkeys(models, base) | {"d02": fleet(5, dtype)[0]}
    found = geometry_of(models, origins, together)
    steps = {
        device: np.concatenate(
            [(model[name].astype(np.float64) - origins[device][name]).ravel() for name in FLOATS]
        )
        for device, model in models.items()
    }
    center = np.median(list(steps.values()), axis=0)
    usual = np.median([np.linalg.norm(step) for step in steps.values()])
    for device, step in steps.items():
        assert math.isclose(found.norms[device], float(np.linalg.norm(step)), rel_tol=1e-12)
        assert math.isclose(found.norms[device], norm(models[device], origins[device]), rel_tol=1e-12)
        others = center - step * min(1.0, usual / np.linalg.norm(step)) / len(steps)
        cosine = float(step @ others) / float(np.linalg.norm(step) * np.linalg.norm(others))
        assert found.cosines[device] == pytest.approx(cosine, abs=1e-12)


def test_who_did_not_move_has_no_direction() -> None:
    base, models = fleet(4)
    models["d01"] = base
    found = geometry_of(models, dict.fromkeys(models, base))
    assert found.norms["d01"] == 0.0
    assert sorted(found.cosines) == ["d00", "d02", "d03"]


def test_a_model_of_whole_numbers_has_no_length() -> None:
    base = {"count": np.array([4, 7])}
    found = geometry_of({"a": base, "b": base}, {"a": base, "b": base})
    assert (found.norms, found.cosines) == ({"a": 0.0, "b": 0.0}, {})
