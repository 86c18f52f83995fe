"""Experiments in one process: what they report, and that reports lie in files and not in memory."""

import numpy as np
import pytest

from fedcore.errors import ConfigError
from fedserver.experiment import Experiment, run, spooled

SMALL = {"learning_rate": 0.05, "batch_size": 16}


@pytest.mark.parametrize("algorithm", ["fedavg", "flux", "flux-prior", "flux-soft"])
def test_an_experiment_reports_what_it_promises(algorithm: str) -> None:
    found = run(Experiment(algorithm=algorithm, rounds=5, threads=1, changes=SMALL))
    assert set(found) >= {"algorithm", "preset", "dataset", "shift", "level", "seed", "clients", "rounds"}
    assert 0.0 < found["accuracy"]["known"] <= 100.0
    assert 0.0 < found["accuracy"]["test"] <= 100.0
    assert len(found["accuracy"]["per_device"]) == 10
    assert 0.0 < found["seconds"]["training"] < found["seconds"]["total"]
    assert found["bytes"]["up"] > 0
    assert found["bytes"]["down"] > 0
    if algorithm == "fedavg":
        assert (found["clusters"], found["clustering_round"]) == (1, None)
    else:
        assert (found["clusters"], found["ari"]) == (4, 1.0)
        assert 1 <= found["clustering_round"] <= 5


def test_what_is_known_of_a_device_with_a_model_of_its_own_is_that_models_accuracy() -> None:
    """Where labels mean something else on each device, a mixture of own and common model does well,
    and the common one, which newcomers get, does not."""
    shift = {"shift": "pyx", "level": 8, "clients": 6, "rounds": 8, "threads": 1}
    found = run(Experiment(algorithm="apfl", changes=SMALL, **shift))  # type: ignore[arg-type]
    accuracy = found["accuracy"]
    assert accuracy["known"] == pytest.approx(accuracy["own"])
    assert accuracy["known"] > accuracy["test"] + 20.0


def test_groups_are_found_with_a_guarantee() -> None:
    changes = {**SMALL, "privacy": "balanced"}
    found = run(Experiment(clients=4, rounds=6, level=2, threads=1, changes=changes))
    assert found["ari"] == 1.0
    assert found["accuracy"]["test"] > 0.0


def test_the_same_seed_gives_the_same_figures_and_another_one_other_devices() -> None:
    first, again, other = (run(Experiment(rounds=2, threads=1, seed=seed)) for seed in (42, 42, 43))
    assert first["accuracy"] == again["accuracy"]
    assert first["accuracy"] != other["accuracy"]


def test_spooled_tensors_are_the_same_values_in_a_mapped_file() -> None:
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7, np.int64)}
    found = spooled(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)
        assert not found[name].flags.owndata
        assert not found[name].flags.writeable
    assert spooled({}) == {}


def test_what_cannot_be_run_is_a_wrong_setting() -> None:
    for change in ({"shift": "pz"}, {"level": 9}, {"clients": 0}, {"dataset": "mnits"}, {"device": "cuda:9"}):
        with pytest.raises(ConfigError):
            run(Experiment(**change))  # type: ignore[arg-type]
