"""What people read: tables and sentences, with everything in them that they need."""

from dataclasses import replace

import pytest

from fedserver.cli import text
from fedserver.cli.runs.release import _said, _tried
from fedserver.coordinator.history.recorder import log_lines
from fedserver.coordinator.status_types import (
    DeviceFigures,
    DeviceStatus,
    ReleaseSummary,
    RolloutStatus,
    RunStatus,
    RunSummary,
    ServerStatus,
)
from fedserver.store.records import LogLine, RunSpec
from shoal.core.algorithm import find
from shoal.core.engine.policy import RoundPolicy
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.privacy.cost import ORDERS, Cost, rho_for
from shoal.core.privacy.report import OPEN as OPEN_WAYS
from shoal.core.privacy.report import WEIGHTS, CentralNoise, Statement
from shoal.core.rollout import Sum
from shoal.core.server_kit.history.records import RoundHistory

OPEN = RunSummary(
    "digits", "digits", "flux", "default", "open", 3, "training round 3 of 10", "1 of 8 reports are in",
    tuple(f"d{number}" for number in range(7)), 12.4,
)  # fmt: skip
RHO = rho_for(5.0, 1e-6)
WIDTH = len(OPEN_WAYS["paper"])
OVER = RunSummary("old", "old", "fedavg", "paper", "failed", 9, waiting_for="no memory")


def test_a_run_in_a_line_says_for_whom_and_until_when() -> None:
    assert text.summary(OPEN) == (
        "digits: open, training round 3 of 10: 1 of 8 reports are in, "
        "from d0, d1, d2, d3, d4 and 2 more, for at most 12 s"
    )
    waiting = replace(OPEN, stage="waiting", title="", waiting_for="1 of 3 devices are here")
    assert text.summary(replace(waiting, waiting_devices=("d1", "d2"), time_left=None)) == (
        "digits: waiting: 1 of 3 devices are here, without d1, d2"
    )
    assert text.summary(OVER) == "old: failed: no memory"


def test_a_run_in_a_line_says_how_long_the_rest_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    going = replace(OPEN, created=999_400.0, progress=2, rounds=10, pace=7.5)  # most of its time it waited
    assert text.summary(going).endswith(", for at most 12 s; about 60 s for the 8 rounds left")
    assert text.summary(replace(going, progress=9)).endswith("; about 8 s for the last round")
    for unknown in (
        replace(going, pace=None),
        replace(going, progress=10),
        replace(going, rounds=0),
        replace(going, stage="waiting"),
        replace(going, stage="finished"),
    ):
        assert "about" not in text.summary(unknown)


def test_all_runs_are_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    trained = replace(OPEN, created=999_700.0, cluster_count=2, accuracy=0.7123, progress=2, rounds=10)
    over = replace(OVER, created=900_000.0, ended=910_800.0)
    assert text.runs([trained, over, OVER]).splitlines() == [
        "run     algorithm  stage   started    took   rounds   clusters  accuracy  why",
        "digits  flux       open    5 min ago  5 min  2 of 10  2         71.2 %    1 of 8 reports are in",
        "old     fedavg     failed  28 h ago   3 h    0        -         -         no memory",
        "old     fedavg     failed  -          -      0        -         -         no memory",
    ]
    assert "fedserver run start" in text.runs([])


def test_a_run_in_full_names_who_is_missing_and_what_gave_no_result() -> None:
    status = RunStatus(
        OVER,
        {"c0": ("d0",), "c1": ()},
        (DeviceFigures("d0", "c0", 0.934, 0.25, 40, 1_500_000, 999), DeviceFigures("d1")),
        {2: "0 of at least 2 reports at the deadline", 3: "no memory", 4: "no memory"},
        {"d1": "it left"},
        {"c0": Weights((), BlobRef("ab" * 32, 0))},
        {
            "d0": Statement(Cost(RHO)),
            "d1": Statement(Cost(RHO)),
            "d2": Statement(Cost(RHO), unprotected=(OPEN_WAYS["paper"],)),
        },
    )
    assert text.status(status).splitlines()[1:] == [
        "device  cluster  accuracy  loss    samples  sent    fetched",
        "d0      c0       93.4 %    0.2500  40       1.5 MB  999 B",
        "d1      -        -         -       -        0 B     0 B",
        "cluster c0: 1 device, 93.4 ± 7.9 %",
        "cluster c1: 0 devices",
        "privacy in this run",
        f"of         {'what left':{WIDTH}}  guarantee",
        f"2 devices  {'everything that left':{WIDTH}}  epsilon 5 at delta 1e-06",
        f"1 device   {OPEN_WAYS['paper']}  none",
        f"1 device   {'the rest':{WIDTH}}  epsilon 5 at delta 1e-06",
        f"weights    {'-':{WIDTH}}  none have left",
        "model c0: 0 B",
        "missing in the last round: d1: it left",
        "1 round without a result: 0 of at least 2 reports at the deadline",
        "2 rounds without a result: no memory",
    ]
    released = text.data(status)["released"]
    assert [released[device]["epsilon"] for device in ("d0", "d2")] == [pytest.approx(5.0), None]
    assert text.data(status)["abandoned"] == dict(status.abandoned)
    assert text.data(status)["models"] == {"c0": {"sha256": "ab" * 32, "size": 0, "tensors": 0}}


def test_a_run_in_full_says_what_was_asked_for_and_how_accurate_its_models_are() -> None:
    """The parameters that the operator set come first, and the rest of the preset after them."""
    policy = RoundPolicy(devices=8, minimum=6, deadline=90.5)
    options = {"classes": 10}
    spec = RunSpec(
        "digits", "fedavg", "paper", {"rounds": 7}, policy, 42, "lenet5", options, software="0.1.0"
    )
    accuracies = {number: number / 20 for number in range(1, 13)}
    status = RunStatus(OPEN, spec=spec, accuracies=accuracies)
    lines = text.status(status).splitlines()[1:]
    assert lines[:8] == [
        "algorithm  fedavg, preset paper, seed 42",
        "started    -",
        "learner    lenet5 with classes=10",
        "weights    devices make the first ones",
        f"digest     {spec.digest[:12]}, by version 0.1.0",
        "policy     devices=8 minimum=6 oversample=1 wait_for_devices=30 deadline=90.5 straggler_factor=3",
        "           device_timeout=60 max_abandoned_rounds=5 retry_after=5",
        "changed    rounds=7",
    ]
    card, _ = find("fedavg")
    listed = " ".join(lines[8:-3]).split()
    assert listed[0] == "unchanged"
    assert [pair.partition("=")[0] for pair in listed[1:]] == [n for n in card.settings if n != "rounds"]
    assert lines[-3:] == [
        "held-out accuracy: 15.0 % after round 3, 20.0 % after round 4, 25.0 % after round 5,",
        "    30.0 % after round 6, 35.0 % after round 7, 40.0 % after round 8, 45.0 % after round 9,",
        "    50.0 % after round 10, 55.0 % after round 11, 60.0 % after round 12",
    ]
    found = text.data(status)
    assert (found["seed"], found["policy"]["deadline"], found["changed"]) == (42, 90.5, ["rounds"])
    assert found["learner"] == {"name": "lenet5", "options": options, "seed": None}
    assert (found["parameters"]["rounds"], set(found["parameters"])) == (7, set(card.settings))
    assert found["accuracies"] == accuracies


def test_shares_of_a_variance_are_not_called_accuracies() -> None:
    run = replace(OPEN, accuracy=0.5, numbers=True)
    assert "50.0 % explained" in text.runs([run])
    assert "explained" not in text.runs([replace(OPEN, numbers=True), replace(run, numbers=False)])
    shown = text.status(RunStatus(run, devices=(DeviceFigures("d0", "c0", 0.934),), accuracies={1: 0.5}))
    assert "accuracy" not in shown
    assert "held-out variance explained: 50.0 % after round 1" in shown
    assert "device  cluster  variance explained  loss" in shown
    assert "held-out variance explained 0.500" in log_lines(RoundHistory(1, accuracy=0.5), numbers=True)[0]
    release = ReleaseSummary("homes@1", accuracy=0.5, error=0.01, numbers=True)
    assert "homes@1: 50.0 ± 2.0 % explained" in _said(release)


def test_a_run_of_an_algorithm_that_is_not_installed_here_shows_what_was_set() -> None:
    status = RunStatus(OPEN, spec=RunSpec("digits", "elsewhere", parameters={"depth": 0.5, "soft": True}))
    lines = text.status(status).splitlines()
    assert "learner    the one that each device has" in lines
    assert "changed    depth=0.5 soft=true" in lines
    assert text.data(status)["parameters"] == {"depth": 0.5, "soft": True}


def test_what_the_models_have_is_said_where_noise_was_added() -> None:
    """With DP-SGD of all devices, with noise of the server, and with one whose weights are open."""
    curve = tuple(0.05 * order for order in ORDERS)
    released = {"d0": Statement(Cost(RHO, curve)), "d1": Statement(Cost(curve=curve))}
    found = text.privacy(released, CentralNoise(0.5, 1e-6))
    worst = released["d0"].promise
    assert found[2:] == [
        "models: epsilon 5.222 at delta 1e-06 for all of a device's updates (11.69 where they are others), "
        "by noise of the server: against those who get models, not against the server",
        f"weights: DP-SGD on each of 2 devices, with its other releases at most {worst}",
    ]
    assert text.private_data(released, CentralNoise(0.5, 1e-6))["central"]["rho"] == 0.5
    mixed = {**released, "d2": Statement(Cost(curve=curve), unprotected=(OPEN_WAYS["weights"],))}
    assert text.privacy(mixed)[-1] == text.private_data(mixed)["weights"] == WEIGHTS


def test_what_several_devices_have_released_is_one_row_also_where_one_released_more() -> None:
    some, more = (OPEN_WAYS["weights"],), (OPEN_WAYS["paper"], OPEN_WAYS["weights"])
    released = {"d0": Statement(Cost(RHO), unprotected=some), "d1": Statement(Cost(RHO), unprotected=more)}
    _, *rows = text.privacy_table(released).splitlines()
    assert sorted(row[:9] for row in rows) == ["1 device ", "2 devices", "2 devices"]


def test_weights_without_a_guarantee_are_one_row() -> None:
    opened = {"d0": Statement(unprotected=(OPEN_WAYS["weights"],))}
    assert text.privacy_table(opened).count("without DP-SGD") == 1
    kept = {"d0": Statement(unprotected=(OPEN_WAYS["paper"],))}
    assert text.privacy_table(kept).splitlines()[-1].split() == ["weights", "-", "none", "have", "left"]


def test_clusters_in_which_nobody_is_are_not_listed() -> None:
    assert text.status(RunStatus(OVER, {"global": ()})) == text.summary(OVER)


def test_the_server_and_its_devices() -> None:
    devices = (DeviceStatus("d0", "working", 2.6, "toy 1", ("digits", 3, 1)), DeviceStatus("d1", "absent"))
    lines = text.server(ServerStatus("1.2", devices, (OPEN,))).splitlines()
    assert lines[0] == "fedserver 1.2: 1 of 2 known devices are connected"
    assert lines[1] == text.summary(OPEN)
    assert lines[3:] == [
        "d0      working  3 s ago    digits    toy 1",
        "d1      absent   -          -         -",
        "privacy over all runs",
        "of       what left  guarantee",
        "weights  -          no privacy guarantee, as they leave without DP-SGD",
    ]
    assert text.server(ServerStatus("1.2", (), ())).splitlines()[1:] == [
        "no run is active",
        "no device has joined yet; create a join string with: fedserver token create",
    ]


def test_a_line_of_the_log() -> None:
    assert text.line(LogLine(1, 86400.0, "d0", "it failed")).endswith(" d0: it failed")
    assert text.line(LogLine(1, 86400.0, "", "round 1 is open")).endswith(" round 1 is open")


def test_no_text_of_a_device_looks_like_a_row_or_a_line() -> None:
    forged = "fedclient 1\nd9  working  0 s ago  r  trusted 1.0"
    found = ServerStatus(
        "1", (DeviceStatus("d0", "idle", 1.0, forged),), (replace(OPEN, waiting_for=forged),)
    )
    shown = text.server(replace(found, notices=(forged,))).splitlines()
    rows = [row for row in shown if "d9" in row]
    assert len(rows) == 3
    assert not any(row.startswith("d9") for row in rows)
    logged = text.line(LogLine(1, 0.0, "d0", "it failed: x\n2026-01-01 00:00:00 d1: revoked")).splitlines()
    assert [row.startswith("  | ") for row in logged] == [False, True]
    missing = text.status(RunStatus(OVER, missing={"d0": forged}, abandoned={1: forged}))
    assert sum(row.startswith("  | d9") for row in missing.splitlines()) == 2


def test_a_rollout_is_said_with_what_was_counted() -> None:
    counted = Sum(2, 500, 0.97, 400, 300, 310, -0.01, 0.06)
    found = RolloutStatus(
        "4f", "stable", "a@1", "a@2", 0.1, 0.01, 1.0, why="too few", clusters={"c0": counted}
    )
    head, row = _tried(found).splitlines()
    assert "rollout of a@2 beside a@1 in channel stable, to 10 % of the devices" in head
    assert "2 devices, 500 predictions, 97.0 % alike, 400 labels: 75.0 % before, 77.5 % now" in row
    assert row.endswith("-1.0 to +6.0 points")
    silent = replace(found, clusters={"c0": Sum(1, 0, None, 0, 0, 0)})
    assert _tried(silent).endswith("cluster c0: 1 devices, 0 predictions, no labels")
