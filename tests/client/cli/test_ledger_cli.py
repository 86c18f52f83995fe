"""What `fedclient ledger` and `fedclient status` tell of a ledger, in processes of their own."""

import asyncio
import json
from pathlib import Path

import pytest

from fedclient.config import read
from fedclient.store.ledger import DAY, Ledger
from fedclient.store.ledger_file import LEDGER
from fedclient.store.privacy_report import ledger_of, line, summary
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import epsilon_of, rho_for
from shoal.core.privacy.report import NO_WEIGHTS, OPEN
from tests.client.cli.test_cli import Ended, call
from tests.client.store.paying import exact, order, released

SETTINGS = (
    "server: 127.0.0.1:1\ninsecure_loopback: true\n"
    "privacy: {epsilon: 8, delta: 1e-6, allow_unprotected: true}\n"
)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "device.yaml"
    path.write_text(SETTINGS)
    return path


def fedclient(*arguments: object) -> Ended:
    return asyncio.run(call(*arguments))


def test_what_was_spent_on_what_and_what_is_left(settings: Path) -> None:
    config = read(settings, {})
    released(ledger_of(config), order(), exact)
    released(Ledger(config.account, config.privacy, "another file"), order(data="b"), exact)
    shown = fedclient("ledger", "-c", settings, "--json")
    assert shown.code == 0
    first, second = shown.data["entries"]
    assert (first["payment"]["facts"]["mode"], first["number"], second["number"]) == ("balanced", 1, 2)
    assert len(first["release"]) == 64
    assert shown.data["budget"]["epsilon"] == 8.0
    of_data, total = shown.data["data"]["d" * 64], shown.data["total"]
    assert of_data["epsilon"] == pytest.approx(5.0)
    assert total["epsilon"] == pytest.approx(7.428, abs=1e-3)  # two releases cost less than their sum
    left = rho_for(8.0, 1e-6) - rho_for(5.0, 1e-6)
    assert of_data["left"] == pytest.approx(epsilon_of(left, 1e-6))
    people = fedclient("ledger", "-c", settings)
    assert (
        "in total: epsilon 7.428 at delta 1e-06 (12.96 where one sample is replaced by another); "
        in people.out
    )
    assert people.out.rstrip().endswith(NO_WEIGHTS)
    assert fedclient("ledger", "--verify", "-c", settings, "--json").data == {"lines": 4}


def test_an_epsilon_stands_beside_the_other_and_not_beside_failures(settings: Path) -> None:
    ledger = ledger_of(read(settings, {}))
    released(ledger, order(), exact)
    ledger.failed("r1", "bug")
    replaced = "epsilon 5 at delta 1e-06 (8.581 where one sample is replaced by another)"
    wanted = f"{replaced}; besides, the server learned that 1 task failed; "
    assert f"in total: {wanted}" in fedclient("ledger", "-c", settings).out
    assert line(summary(read(settings, {}))).startswith(wanted)
    ledger.unprotected(OPEN["bounds"], "d" * 64)
    assert f"; the rest: {wanted}" in line(summary(read(settings, {})))


def test_when_more_of_the_budget_is_free(settings: Path) -> None:
    """Unless all of it that there ever is was spent."""
    released(ledger_of(read(settings, {})), order(), exact)
    shown = fedclient("ledger", "-c", settings, "--json").data
    (of_data,) = shown["data"].values()
    assert of_data["more_from"] == pytest.approx(shown["entries"][0]["at"] + 30 * DAY)
    assert " is left, and more from 2" in fedclient("ledger", "-c", settings).out
    settings.write_text(SETTINGS.replace("epsilon: 8", "epsilon: 5, total_epsilon: 5"))
    for_good = fedclient("ledger", "-c", settings)
    assert "; 0 is left\n" in for_good.out
    assert "more from" not in for_good.out


def test_what_left_without_a_guarantee_leaves_no_number_to_be_misled_by(settings: Path) -> None:
    ledger = ledger_of(read(settings, {}))
    released(ledger, order(), exact)
    ledger.unprotected(OPEN["paper"], "d" * 64)
    shown = fedclient("status", "-c", settings, "--json").data["privacy"]
    assert shown["total"]["epsilon"] is None
    assert shown["total"]["of_releases"] == pytest.approx(5.0)
    people = fedclient("status", "-c", settings).out
    assert "privacy:     no guarantee: a descriptor with the papers' noise" in people
    assert "which is not private" in people
    settings.write_text(SETTINGS.replace("allow_unp", "allow_plain_weights: true, allow_unp"))
    ledger_of(read(settings, {})).unprotected(OPEN["weights"], "d" * 64)
    assert fedclient("status", "-c", settings).out.count("DP-SGD") == 1


def test_a_ledger_that_was_changed_is_an_error_and_no_number_is_told(settings: Path) -> None:
    config = read(settings, {})
    released(ledger_of(config), order(), exact)
    path = config.state / "privacy" / LEDGER
    path.write_bytes(path.read_bytes().replace(b'"rho": 0', b'"rho": 1'))
    for options in ((), ("--verify",)):
        ended = fedclient("ledger", *options, "-c", settings, "--json")
        assert ended.code == 8
        error = json.loads(ended.out)["error"]
        assert error["code"] == "bad-ledger"
        assert "line 1 of the ledger" in error["message"]
        assert "Restore the folder from a backup" in error["hint"]
    assert line(summary(config)).startswith("unknown: ")
    assert "privacy:     unknown" in fedclient("status", "-c", settings).out


def test_nothing_was_released_yet(settings: Path) -> None:
    assert "in total: nothing was released; " in fedclient("ledger", "-c", settings).out
    assert Ledger(settings.parent / "none", Budget()).verify() == []
