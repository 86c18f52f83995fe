"""One pass over all updates of a round gives what separate passes would."""

import math

import numpy as np
import pytest

from shoal.core.exchange.tensors import BLOCK, digest, weighted_mean
from shoal.core.server_kit.aggregation import survey as module
from shoal.core.server_kit.aggregation.coordinates import Clipped
from shoal.core.server_kit.aggregation.robust import Update, combine
from shoal.core.server_kit.aggregation.survey import norm, survey
from shoal.core.server_kit.clustering.distances import of_devices
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
@pytest.mark.parametrize("matrix", [1 << 25, 1 << 10], ids=["together", "products apart"])
def test_lengths_angles_and_mean_are_those_of_separate_passes(
    dtype: str, matrix: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MATRIX", matrix)
    base, models = fleet(4, dtype)
    origins = dict.fromkeys(models, base) | {"d02": fleet(5, dtype)[0]}
    weights = {"d00": 3.0, "d01": 1.0, "d02": 0.1, "d03": 7.0}
    found = survey(models, origins, base, weights, compared=True)
    for device, model in models.items():
        steps = [(model[name].astype(np.float64) - origins[device][name]).ravel() for name in FLOATS]
        assert math.isclose(found.norms[device], float(np.linalg.norm(np.concatenate(steps))), rel_tol=1e-12)
        assert found.norms[device] == norm(model, origins[device])
    assert found.products is not None
    assert found.mean is not None
    np.testing.assert_allclose(found.products, of_devices(models, origins), rtol=1e-9, atol=1e-9)
    same = of_devices(models, origins, module.BLOCK if matrix == 1 << 25 else 0)  # as where workers help
    np.testing.assert_array_equal(found.products, same)
    whole = weighted_mean([(models[device], weights[device]) for device in models])
    assert digest(found.mean) == digest({name: whole[name] for name in FLOATS})


def test_a_round_that_is_corrected_has_a_mean_of_its_own_and_the_order_of_the_tensors() -> None:
    """The mean of the survey is for rounds in which no update is shortened or left out."""
    base, models = fleet(4)
    usual = combine("clipped", base, {device: Update(model, 1.0) for device, model in models.items()})
    assert list(usual.model) == list(base)
    assert not usual.clipped
    models["d03"] = {**models["d03"], "long": base["long"] + 50 * (models["d03"]["long"] - base["long"])}
    found = combine("clipped", base, {device: Update(model, 1.0) for device, model in models.items()})
    (times,) = found.clipped.values()
    shortened = Clipped(models["d03"], base, 1.5 / times)
    expected = weighted_mean([(models[device], 1.0) for device in ("d00", "d01", "d02")] + [(shortened, 1.0)])
    assert list(found.model) == list(base)
    for name in FLOATS:
        np.testing.assert_array_equal(found.model[name], expected[name])


def test_a_model_of_whole_numbers_has_no_length() -> None:
    base = {"count": np.array([4, 7])}
    found = survey({"a": base, "b": base}, {"a": base, "b": base}, base, {"a": 1.0, "b": 1.0}, compared=True)
    assert found.norms == {"a": 0.0, "b": 0.0}
    assert found.mean == {}
