"""Models in few bits: what is lost, what is not, and that hostile ones are refused."""

from typing import Any

import numpy as np
import pytest

from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import Choose
from shoal.core.exchange.choosing.compact import ChooseCompact, compact
from shoal.core.exchange.tensors import manifest_of, nbytes, weighted_mean
from shoal.core.types import Tensors

SIZE = (32, 3, 5, 5)


def model(seed: int) -> dict[str, Any]:
    """All are near a common one, as models of clusters are."""
    common, own = np.random.default_rng(1), np.random.default_rng(seed)
    return {
        "conv.weight": (common.normal(size=SIZE) + 0.1 * own.normal(size=SIZE)).astype(np.float32),
        "odd": own.normal(size=(3, 3)),
        "bn.running_var": own.random(32).astype(np.float32),
        "bn.steps": np.array(seed, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "table": np.arange(6, dtype=np.int32).reshape(2, 3) + seed,
    }


def choice(clusters: int, *changed: Tensors, **others: Any) -> Choose:
    models = [*changed, *(model(seed) for seed in range(2, 2 + clusters - len(changed)))]
    common = weighted_mean((each, 1.0) for each in models)
    names = " ".join((*(f"c{number}" for number in range(clusters)), "global"))
    return Choose((*models, common), names, (1.0,) * clusters, **others)


def farthest(found: Tensors, wanted: Tensors, name: str) -> float:
    return float(np.abs(found[name] - wanted[name]).max())


@pytest.mark.parametrize(("clusters", "error"), [(2, 0.002), (4, 0.002), (5, 0.04), (12, 0.04)])
def test_a_matrix_is_stored_coarsely_and_all_else_as_it_is(clusters: int, error: float) -> None:
    asked = choice(clusters)
    manifest = manifest_of(asked.models[0])
    found = compact(asked).opened(manifest)
    assert (found.keys, found.shares) == (asked.keys, asked.shares)
    for opened, exact in zip(found.models, asked.models, strict=True):
        assert manifest_of({name: opened[name] for name in opened}) == manifest
        assert farthest(opened, exact, "conv.weight") < (error if opened is not found.models[-1] else 0.02)
        for name in ("bn.running_var", "bn.steps", "empty", "table"):
            assert opened[name].tolist() == exact[name].tolist()


@pytest.mark.parametrize("clusters", [4, 10])
def test_all_models_together_have_the_bytes_of_two(clusters: int) -> None:
    shapes = {"a": (256, 400), "b": (10, 256)}
    models = [
        {name: np.random.default_rng(seed).normal(size=size) for name, size in shapes.items()}
        for seed in range(clusters + 1)
    ]
    models = [{name: array.astype(np.float32) for name, array in each.items()} for each in models]
    names = " ".join((*(f"c{number}" for number in range(clusters)), "global"))
    clusters_data = {
        "shares": np.ones((clusters, 11)),
        "means": np.ones((clusters, 11, 10)),
        "variances": np.ones((clusters, 11, 10)),
    }
    projector = {"mean": np.zeros(256), "components": np.zeros((10, 256))}
    question = Choose(tuple(models), names, (1.0,) * clusters, models[0], projector, clusters_data)
    sent = compact(question)
    parts = (sent.common, sent.models, sent.encoder, sent.projector, sent.densities)
    assert sum(nbytes(part) for part in parts if part) < 2 * nbytes(models[0])


def test_a_model_that_has_diverged_and_the_common_one_with_it_spoil_no_other() -> None:
    for bad in (np.nan, np.inf, 1e30):
        broken = {**model(9), "conv.weight": np.full(SIZE, bad, np.float32)}
        asked = choice(3, broken)
        with np.errstate(all="ignore"):
            found = compact(asked).opened(manifest_of(broken))
            assert not np.isfinite(found.models[0]["conv.weight"]).all() or bad == 1e30
            for number in (1, 2):
                assert farthest(found.models[number], asked.models[number], "conv.weight") < 0.02


def test_densities_stay_close_and_above_zero() -> None:
    clusters = {
        "shares": np.ones((2, 1)) / 3,
        "means": np.full((2, 1, 2), np.pi),
        "variances": np.full((2, 1, 2), 1e-60),
    }
    encoder, projector = model(3), {"mean": np.ones(2) / 3, "components": np.eye(2)}
    asked = choice(2, encoder=encoder, projector=projector, densities=clusters)
    found = compact(asked).opened(manifest_of(encoder))
    assert found.densities is not None
    assert found.densities["means"].dtype == np.float64
    assert found.densities["means"] == pytest.approx(clusters["means"], rel=1e-6)
    assert (found.densities["variances"] > 0.0).all()
    assert found.encoder is not None
    assert farthest(found.encoder, encoder, "conv.weight") < 0.02
    assert found.encoder["bn.steps"] == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: {"names": "c0 global"},
        lambda sent: {"shares": (1.0,)},
        lambda sent: {"bits": 3},
        lambda sent: {"bits": 4},
        lambda sent: {"models": {**sent.models, "codes": sent.models["codes"][:, :-1]}},
        lambda sent: {"models": {**sent.models, "scales": sent.models["scales"].astype(np.float64)}},
        lambda sent: {"common": {name: array for name, array in sent.common.items() if name != "rest"}},
        lambda sent: {"common": {**sent.common, "more": np.zeros(3)}},
        lambda sent: {"encoder": sent.common},
    ],
)
def test_what_does_not_fit_the_devices_network_is_refused(change: Any) -> None:
    sent = compact(choice(2))
    fields = {"names": sent.names, "shares": sent.shares, "bits": sent.bits}
    parts = {"common": sent.common, "models": sent.models, "encoder": None}
    with pytest.raises(BadPayload):
        ChooseCompact(**{**fields, **parts, **change(sent)}).opened(manifest_of(model(1)))


def test_any_scale_that_a_server_sends_gives_numbers_or_nothing() -> None:
    sent = compact(choice(2))
    for scale in (np.nan, np.inf, -np.inf, 3e38):
        scales = np.full_like(sent.models["scales"], scale)
        hostile = ChooseCompact(
            sent.names, sent.shares, sent.bits, sent.common, {**sent.models, "scales": scales}
        )
        found = hostile.opened(manifest_of(model(1))).models[0]["conv.weight"]
        assert (found.shape, found.dtype.name) == (SIZE, "float32")
