"""Experiments in one process: what they report, and that reports lie in files and not in memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.core.algorithm import find
from shoal.core.data.dataset import Dataset
from shoal.core.errors import ConfigError, Refused
from shoal.core.exchange.messages import Describe, Evaluate, Train, TrainingSettings
from shoal.core.exchange.parts import Descriptor
from shoal.core.server_kit.clustered import Clustered
from shoal.core.server_kit.standard import ensemble
from shoal.simulation.fleet import Holding, numbered
from shoal.simulation.images import unit
from shoal.simulation.simulated import SimulatedDevices, spooled
from shoal_lab.cli.text import experiment_text
from shoal_lab.datasets.images import load
from shoal_lab.datasets.natural import COLUMNS
from shoal_lab.experiment import ENSEMBLE, Experiment, mean_of_placed, newcomer, run
from shoal_lab.setting import fleet_of
from tests.fleet import first_model, learner

SMALL = {"learning_rate": 0.05, "batch_size": 16}


@pytest.mark.parametrize("algorithm", ["fedavg", "flux", "flux-prior", "flux-soft"])
def test_an_experiment_reports_what_it_promises(algorithm: str) -> None:
    # Of five rounds, a warm-up that is measured in exchanges of its own leaves one more for the clusters.
    changes = SMALL if algorithm == "fedavg" else {**SMALL, "warm_up": "accuracy"}
    found = run(Experiment(algorithm=algorithm, rounds=5, threads=1, changes=changes))
    assert set(found) >= {"algorithm", "preset", "dataset", "shift", "level", "seed", "clients", "rounds"}
    assert found["verdict"]["learned"] is True
    assert experiment_text(found).startswith(found["verdict"]["text"])
    placed = [{**row, "placed": ENSEMBLE} for row in found["accuracy"]["per_device"]]
    other = {
        **found,
        "shift": "qs-features",
        "level": 0,
        "accuracy": {**found["accuracy"], "per_device": placed},
    }
    assert ", qs-features level 0, seed" in experiment_text(other)
    assert f" {ENSEMBLE} " in experiment_text(other), "apart from the figures beside it"
    assert 0.0 < found["accuracy"]["known"] <= 100.0
    assert 0.0 < found["accuracy"]["test"] <= 100.0
    assert len(found["accuracy"]["per_device"]) == 10
    assert 0.0 < found["seconds"]["training"] < found["seconds"]["total"]
    assert found["bytes"]["up"] > 0
    assert found["bytes"]["down"] > 0
    if algorithm == "fedavg":
        assert (found["clusters"], found["clustering_round"]) == (1, None)
    else:
        # Where clusters are to be like those of all labels, five rounds are few.
        assert found["clusters"] == 4
        assert found["ari"] >= (0.6 if algorithm == "flux-prior" else 1.0)
        assert 1 <= found["clustering_round"] <= 5


def test_what_is_known_of_a_device_with_a_model_of_its_own_is_that_models_accuracy() -> None:
    """Where labels mean something else on each device, a mixture of own and common model does well,
    and the common one, which newcomers get, does not."""
    shift = {"shift": "pyx", "level": 8, "clients": 6, "rounds": 8, "threads": 1}
    found = run(Experiment(algorithm="apfl", changes=SMALL, **shift))  # type: ignore[arg-type]
    accuracy = found["accuracy"]
    assert accuracy["known"] == pytest.approx(accuracy["own"])
    assert accuracy["known"] > accuracy["test"] + 20.0


@pytest.mark.parametrize("algorithm", ["ifca", "fedem"])
def test_where_newcomers_need_labels_all_clusters_models_decide_together(algorithm: str) -> None:
    """FLUX, F.1. With labels to show they are placed instead."""
    settings = {"clients": 4, "rounds": 2, "threads": 1, "changes": {**SMALL, "placing": "paper"}}
    found = run(Experiment(algorithm, **settings))  # type: ignore[arg-type]
    rows = found["accuracy"]["per_device"]
    assert {row["placed"] for row in rows} == {ENSEMBLE}
    assert found["accuracy"]["test"] == pytest.approx(100.0 * float(np.mean([row["test"] for row in rows])))
    assert found["accuracy"]["refused"] == 0
    shown = run(Experiment(algorithm, labels=3, **settings))  # type: ignore[arg-type]
    assert not {row["placed"] for row in shown["accuracy"]["per_device"]} & {ENSEMBLE, None}


def test_the_ensemble_counts_a_model_by_its_devices() -> None:
    models = {name: first_model() for name in ("c0", "c1", "c2")}
    state = Clustered(
        parameters=None, models=models, phase="done", assignments={"a": "c2", "b": "c0", "c": "c2"}
    )
    assert ensemble(state).weights == (1.0, 0.0, 2.0)
    assert ensemble(replace(state, assignments={})).weights == (1.0, 1.0, 1.0)


def test_a_device_that_is_refused_a_model_predicts_nothing_right() -> None:
    assert mean_of_placed([{"test": 0.9}, {"test": None}, {"test": 0.6}]) == pytest.approx(50.0)
    assert mean_of_placed([{"test": None}, {"test": None}]) is None


def test_the_spread_over_devices_is_of_what_they_know() -> None:
    accuracy = run(Experiment("fedavg", clients=3, rounds=1, threads=1))["accuracy"]
    known = [100.0 * row["known"] for row in accuracy["per_device"]]
    assert accuracy["worst"] == pytest.approx(min(known))
    assert accuracy["deviation"] == pytest.approx(float(np.std(known)))


def test_the_held_out_share_is_a_setting() -> None:
    """fedavg trains on all; flux cannot do without a held-out part, and says so."""
    settings = {"clients": 2, "rounds": 1, "threads": 1, "held_out": 0.0}
    assert run(Experiment("fedavg", **settings))["held_out"] == 0.0  # type: ignore[arg-type]
    with pytest.raises(Refused, match="held_out part of the data is empty"):
        run(Experiment("flux", **settings))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="held_out is 1"):
        run(Experiment("fedavg", **{**settings, "held_out": 1.0}))  # type: ignore[arg-type]


def test_a_round_asks_a_share_of_the_devices_and_all_are_measured() -> None:
    found = run(Experiment("fedavg", clients=8, rounds=2, threads=1, participation=0.25))
    assert [each["devices"] for each in found["history"] if each["trained"]] == [2, 2]
    assert len(found["accuracy"]["per_device"]) == 8
    with pytest.raises(ConfigError, match="participation is 0"):
        run(Experiment("fedavg", participation=0.0))


def test_a_device_that_no_round_asked_is_measured_with_the_cluster_that_its_labels_choose() -> None:
    settings = {"clients": 8, "rounds": 5, "level": 3, "threads": 1, "participation": 0.5}
    found = run(Experiment("flux", changes={"as_published": True}, **settings))  # type: ignore[arg-type]
    assert any("3 of 8 devices have no cluster" in each for each in found["remarks"])
    assert found["ari"] == 1.0
    whole = run(Experiment("flux", **settings))  # type: ignore[arg-type]
    assert not any("have no cluster" in each for each in whole["remarks"])


def test_devices_may_have_their_samples_several_times_and_newcomers_any_cluster() -> None:
    settings = {"clients": 2, "rounds": 1, "threads": 1, "random": True}
    once, twice = (run(Experiment("ifca", copies=copies, **settings)) for copies in (1, 2))  # type: ignore[arg-type]
    assert twice["bytes"] == once["bytes"]
    assert twice["accuracy"]["known"] != once["accuracy"]["known"], "twice as many steps"
    assert 0.0 <= once["accuracy"]["random"] <= 100.0
    with pytest.raises(ConfigError, match="copies is 0"):
        run(Experiment("fedavg", copies=0))


def test_a_share_of_the_devices_is_tested_on_what_it_did_not_train_on() -> None:
    settings = {"level": "medium", "drifts": 2, "clients": 10, "rounds": 2, "seed": 1}
    plain, half, whole, strange = (
        fleet_of(Experiment("fedavg", **settings, **change))[0]  # type: ignore[arg-type]
        for change in ({}, {"unseen": 0.5}, {"unseen": 1.0}, {"mode": "trDR_teDR"})
    )
    assert whole.concepts == strange.concepts
    same = [
        (one.test.x == plain[name].test.x).all() or (one.test.x == strange[name].test.x).all()
        for name, one in half.items()
    ]
    assert all(same)
    moved = sum(not (one.test.x == plain[name].test.x).all() for name, one in whole.items())
    assert 0 < sum(not (one.test.x == plain[name].test.x).all() for name, one in half.items()) <= moved


def test_groups_are_found_with_a_guarantee() -> None:
    changes = {**SMALL, "privacy": "balanced"}
    found = run(Experiment(clients=4, rounds=6, level=2, threads=1, changes=changes))
    assert found["ari"] == 1.0
    assert found["accuracy"]["test"] > 0.0


def test_the_same_seed_gives_the_same_figures_and_another_one_other_devices() -> None:
    settings = {"clients": 3, "rounds": 2, "threads": 1}
    first, again, other = (run(Experiment(seed=seed, **settings)) for seed in (42, 42, 43))  # type: ignore[arg-type]
    assert first["accuracy"] == again["accuracy"]
    assert first["accuracy"] != other["accuracy"]


def test_rounds_that_are_not_asked_for_are_those_of_the_preset() -> None:
    """Drift is spread over them, so what is set as a parameter counts for the data too."""
    drifting = {"algorithm": "fedavg", "level": "low", "drifts": 2, "clients": 2, "threads": 1}
    assert run(Experiment(**drifting, changes={**SMALL, "rounds": 2}))["rounds"] == 2  # type: ignore[arg-type]
    preset = {"algorithm": "cornflqs", "preset": "paper", "samples": 20, "clients": 2, "threads": 1}
    assert run(Experiment(**preset, changes={"epochs": 1}))["rounds"] == 20  # type: ignore[arg-type]


def test_spooled_tensors_are_the_same_values_in_a_mapped_file() -> None:
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7, np.int64)}
    found = spooled(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)
        assert not found[name].flags.owndata
        assert not found[name].flags.writeable
    assert spooled({}) == {}


def test_what_cannot_be_run_is_a_wrong_setting() -> None:
    for change in (
        {"shift": "pz"},
        {"level": 9},
        {"level": "low"},
        {"level": 5, "drifts": 2},
        {"dataset": "elec2"},
        {"clients": 0},
        {"dataset": "mnits"},
        {"device": "cuda:9"},
    ):
        with pytest.raises(ConfigError):
            run(Experiment(**change))  # type: ignore[arg-type]


def test_what_would_be_left_unused_is_refused() -> None:
    with pytest.raises(ConfigError, match="samples and model cannot be chosen: the devices of elec2 differ"):
        run(Experiment(dataset="elec2", samples=10, model="mlp"))
    with pytest.raises(ConfigError, match="options are for a model, and none is named"):
        run(Experiment(options={"hidden": [8]}))


@pytest.mark.parametrize(("algorithm", "labels"), [("flux-dynamic", 0), ("feroma", 5)])
def test_devices_whose_data_drift(algorithm: str, labels: int) -> None:
    settings = {"shift": "pyx", "level": "low", "drifts": 2, "clients": 4, "rounds": 5, "labels": labels}
    found = run(Experiment(algorithm=algorithm, threads=1, changes=SMALL, **settings))  # type: ignore[arg-type]
    assert {name: found[name] for name in settings} == settings
    assert found["mode"] == "trDR_teND"
    assert 0.0 < found["accuracy"]["known"] <= 100.0
    assert 0.0 < found["accuracy"]["test"] <= 100.0


def test_a_device_moves_on_with_its_own_training_and_with_nothing_else() -> None:
    train, _ = load("digits")
    own = [Dataset(unit(train.x[rows]), train.y[rows]) for rows in (slice(0, 20), slice(20, 50))]  # type: ignore[index]
    holding = Holding(own.__getitem__, (0, 2), own[0], 0)
    devices = SimulatedDevices(find("fedavg")[0], numbered([holding]), learner(), "cpu", 1)
    device = devices.calls()["device-000"]
    seen = []
    for _ in range(3):
        device(Evaluate(first_model()), 1)
        seen.append(device(Train(first_model(), TrainingSettings(epochs=1)), 1).examples)  # type: ignore[attr-defined]
    assert seen == [16, 16, 24]


def test_newcomers_show_as_many_labels_as_they_are_told() -> None:
    train, _ = load("digits")
    data = Dataset(unit(train.x[:300]), train.y[:300])  # type: ignore[index]
    fleet = numbered([Holding.steady(data, data)])
    devices = SimulatedDevices(find("feroma")[0], fleet, learner(), "cpu", 1)
    task = Describe(first_model(), {"mean": np.zeros(32), "components": np.eye(4, 32)}, classes=10)
    found = devices.shown("device-000", task, newcomer(devices, "device-000", 7))
    assert isinstance(found, Descriptor)
    assert found.statistics.counts.tolist() == [70.0, *[7.0] * 10]
    assert newcomer(devices, "device-000", 0).y is None
    blind = devices.shown("device-000", replace(task, classes=0), newcomer(devices, "device-000", 0))
    assert isinstance(blind, Descriptor)
    assert blind.statistics.counts.tolist() == [300.0]


@pytest.mark.parametrize("algorithm", ["flux-dynamic", "feroma"])
def test_devices_that_differ_by_nature(algorithm: str, tmp_path: Path) -> None:
    day, half_hour = (each.ravel() for each in np.divmod(np.arange(48 * 40), 48))
    chance = np.random.default_rng(0)
    up = (chance.random(48 * 40) < half_hour / 47).astype(float)
    filled = np.column_stack([half_hour / 47, day, up + chance.random(48 * 40), day, day, half_hour, up])
    np.savetxt(tmp_path / "elec.csv", filled, delimiter=",", header=COLUMNS, comments="")
    settings = {"dataset": "elec2", "data_dir": tmp_path, "drifts": 2, "clients": 4, "rounds": 5}
    found = run(Experiment(algorithm=algorithm, threads=1, changes=SMALL, **settings))  # type: ignore[arg-type]
    assert (found["shift"], found["mode"], found["level"]) == ("natural", "in time order", "")
    assert len(found["accuracy"]["per_device"]) == 4
    assert 40.0 < found["accuracy"]["known"] <= 100.0


def test_a_class_that_no_test_part_has_is_one_all_the_same(tmp_path: Path) -> None:
    """Of an activity of fewer than five windows, none is in a person's test part."""
    arrays = {}
    for part, people in (("train", (1, 2)), ("test", (3, 4))):
        person = np.repeat(people, 24)
        activity = np.tile([*[1] * 10, *[2] * 10, *[12] * 4], 2)
        order = np.tile(np.arange(24), 2)
        arrays |= {
            f"X_{part}": np.random.default_rng(0).random((48, 128, 6)).astype(np.float32),
            f"y_{part}": activity.astype(np.uint8),
            f"subject_{part}": person.astype(np.uint8),
            f"exp_{part}": person.astype(np.uint8),
            f"start_{part}": (128 * order).astype(np.int32),
        }
    np.savez(tmp_path / "hapt-windows-128x6.npz", **arrays)
    experiment = Experiment("fedavg", dataset="hapt", data_dir=tmp_path, clients=4, rounds=1, changes=SMALL)
    fleet, _ = fleet_of(experiment)
    assert fleet.classes == 12
    assert all(holding.test.y is not None and holding.test.y.max() == 1 for holding in fleet.values())
    assert len(run(replace(experiment, threads=1))["accuracy"]["per_device"]) == 4


def test_newcomers_of_fedrcs_shift_show_labelled_data_and_use_what_they_are_given() -> None:
    shift = {"shift": "fedrc", "level": 1, "clients": 4, "rounds": 2, "threads": 1}
    found = run(Experiment("fedrc", changes={"clusters": 3}, **shift))  # type: ignore[arg-type]
    assert [row["concept"] for row in found["accuracy"]["per_newcomer"]] == [0, 1, 2]
    assert {row["placed"] for row in found["accuracy"]["per_newcomer"]} <= {"c0", "c1", "c2", "global"}
    assert 0.0 <= found["accuracy"]["newcomers"] <= 100.0
    assert found["accuracy"]["own"] == pytest.approx(found["accuracy"]["known"])
    assert set(found["facts"]) == {"clusters", "ensemble", "hard", "tuned"}
    assert {row["placed"] for row in found["accuracy"]["per_device"]} <= {"c0", "c1", "c2", "global"}
    assert found["seconds"]["training"] > 0.0
    as_paper = run(Experiment("fedrc", changes={"clusters": 3, "placing": "paper"}, **shift))  # type: ignore[arg-type]
    assert {row["placed"] for row in as_paper["accuracy"]["per_newcomer"]} <= {"c0", "c1", "c2"}
    assert {row["placed"] for row in as_paper["accuracy"]["per_device"]} == {ENSEMBLE}
    assert as_paper["accuracy"]["known"] == found["accuracy"]["known"]
