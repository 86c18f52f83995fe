"""Consent by run: nothing leaves in the open before the owner has said so; a rule says it for all runs."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from fedclient.config import PrivacyConfig, read
from fedclient.store.consent import ASKED, REVOKED, RUNS, Consents
from fedclient.store.ledger import Ledger
from fedclient.store.privacy_report import ledger_of
from shoal.core.errors import ConfigError, InUse, NoConsent, NotFound, Unprotected
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Open, chosen
from shoal.core.privacy.report import OPEN
from shoal.shell import disk
from tests.client.cli.test_cli import Ended, call
from tests.client.store.paying import exact, order, released
from tests.waiting import HANG

DATA = "d" * 64
WEIGHTS, FIGURES = OPEN["weights"], OPEN["figures"]


def ledger(folder: Path, budget: Budget | None = None) -> Ledger:
    return Ledger(folder / "privacy", budget or PrivacyConfig(), consents=Consents(folder / "consent"))


def test_nothing_leaves_before_the_owner_consents_and_nothing_after_it_is_revoked(tmp_path: Path) -> None:
    own, consents = ledger(tmp_path).of("r1"), Consents(tmp_path / "consent")
    with pytest.raises(NoConsent, match="run r1 asks for weights trained without DP-SGD"):
        own.unprotected(WEIGHTS, DATA)
    assert chosen(own.verify(), Open) == []
    assert list(consents.asked()["r1"]) == [WEIGHTS]
    consents.give("r1")
    own.unprotected(WEIGHTS, DATA)
    assert [each.what for each in chosen(own.verify(), Open)] == [WEIGHTS]
    with pytest.raises(NoConsent):  # the run asks for more
        own.unprotected(FIGURES, DATA)
    with pytest.raises(NoConsent):  # and another run was not allowed anything
        ledger(tmp_path).of("r2").unprotected(WEIGHTS, DATA)
    consents.give("r1", everything=True)
    own.unprotected(FIGURES, DATA)
    own.unprotected("a 'nova' report, as computed", DATA)
    consents.revoke("r1")
    with pytest.raises(NoConsent):
        own.unprotected(WEIGHTS, DATA)


def test_what_is_taken_back_is_not_given_again_by_a_process_that_writes_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training process forgets the consent of a run with other terms while the owner refuses another."""
    trains, owner = Consents(tmp_path), Consents(tmp_path)
    for run in ("r1", "r2"):
        assert not trains.allows(run, WEIGHTS)
        owner.give(run)
    moved, write, lock = threading.Event(), Consents._write, disk.lock

    def revoke() -> None:
        owner.revoke("r2")
        moved.set()

    def locking(path: Path) -> IO[str]:
        try:
            return lock(path)
        except InUse:
            moved.set()
            raise

    def writing(consents: Consents, name: str, value: object) -> None:
        if consents is trains:
            revoking.start()
            assert moved.wait(HANG)
        write(consents, name, value)

    revoking = threading.Thread(target=revoke)
    monkeypatch.setattr(disk, "lock", locking)
    monkeypatch.setattr(Consents, "_write", writing)
    trains.ask_again("r1", WEIGHTS)
    revoking.join(HANG)
    assert owner.given() == {"r1": []}


@pytest.mark.parametrize("what", [WEIGHTS, OPEN["off"], "a 'nova' report, as computed"])
def test_a_rule_decides_for_all_runs(tmp_path: Path, what: str) -> None:
    always = PrivacyConfig(allow_unprotected=True, allow_plain_weights=True)
    ledger(tmp_path, always).of("r1").unprotected(what, DATA)
    never = PrivacyConfig(allow_unprotected=False, allow_plain_weights=False)
    Consents(tmp_path / "consent").give("r1", everything=True)
    with pytest.raises(Unprotected):
        ledger(tmp_path, never).of("r1").unprotected(what, DATA)


@pytest.mark.parametrize("one", ["allow_unprotected", "allow_plain_weights"])
def test_a_report_of_an_unknown_kind_passes_only_if_both_rules_let_it(tmp_path: Path, one: str) -> None:
    """FedRC's three accuracies and ATP's loss are such reports; they slipped through one of the rules."""
    rules = {"allow_unprotected": True, "allow_plain_weights": True, one: False}
    with pytest.raises(Unprotected):
        ledger(tmp_path, PrivacyConfig(**rules)).of("r1").unprotected("a 'nova' report, as computed", DATA)


def test_on_the_owners_own_machine_nothing_has_to_be_asked() -> None:
    assert PrivacyConfig().towards(joined=False).allows(WEIGHTS) is True
    assert PrivacyConfig().towards(joined=True).allows(WEIGHTS) is None
    assert PrivacyConfig(allow_plain_weights=False).towards(joined=False).allows(WEIGHTS) is False


def test_a_hostile_server_cannot_fill_the_disk_with_runs(tmp_path: Path) -> None:
    consents = Consents(tmp_path)
    for number in range(RUNS + 7):
        assert not consents.allows(f"r{number}", WEIGHTS)
    assert list(consents.asked()) == [f"r{number}" for number in range(7, RUNS + 7)]


def test_a_run_can_be_refused_after_a_hundred_newer_ones_and_before_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text("{}\n")
    consents = read(path, {}).consents
    for number in range(RUNS + 1):
        consents.note(f"r{number}", {})

    def fedclient(*arguments: object) -> Ended:
        return asyncio.run(call("consent", "revoke", *arguments, "-c", path))

    found = fedclient("r0")
    assert found.code == NotFound.exit_code
    assert "--unseen refuses any other run" in found.err
    assert fedclient("r0", "--unseen").code == 0
    for number in range(1, RUNS + 1):
        consents.revoke(f"r{number}")
    for run in ("r0", f"r{RUNS}"):  # no refusal is forgotten
        with pytest.raises(NoConsent, match=f"you have refused run {run}"):
            consents.check_not_refused(run)
    consents.give("r0")
    consents.check_not_refused("r0")


def test_a_run_that_waits_for_consent_can_be_refused(tmp_path: Path) -> None:
    consents = Consents(tmp_path)
    assert not consents.allows("r1", WEIGHTS)
    consents.revoke("r1")
    assert consents.refused() == ["r1"]


def test_a_damaged_file_is_no_consent(tmp_path: Path) -> None:
    consents = Consents(tmp_path)
    consents.give("r1", everything=True)
    for damaged in ('{"r1": ["*"', '{"r1": "*"}', '{"r1": [1]}', '{"r1": [["*"]]}', '["r1"]', "\ufffd"):
        (tmp_path / "given.json").write_text(damaged)
        assert not consents.allows("r1", WEIGHTS)
        assert consents.give("r1") == [WEIGHTS], "it can be given again"
        consents.revoke("r1")
    assert json.loads((tmp_path / ASKED).read_text()).keys() == {"r1"}


@pytest.mark.parametrize(
    "damaged", ['{"r1": 1.0', '{"r1": "1.0"}', '{"r1": NaN}', '{"r1": null, "r2": 1.0}', '["r1"]', "\ufffd"]
)
def test_a_refusal_that_cannot_be_read_is_not_forgotten(tmp_path: Path, damaged: str) -> None:
    """A run that needs no consent, or that rules allow, would go on otherwise."""
    consents, began = Consents(tmp_path), time.time() + 1.0
    consents.revoke("r1", unseen=True)
    (tmp_path / REVOKED).write_text(damaged)
    steps: list[Callable[[], object]] = [
        lambda: consents.check_not_refused("r1"),
        lambda: consents.check_since("r1", began),
        lambda: consents.check_since("r2", began),
        consents.refused,
        lambda: consents.give("r2"),
        lambda: consents.revoke("r2", unseen=True),
    ]
    for step in steps:
        with pytest.raises(NoConsent, match="which runs you have refused is not known") as caught:
            step()
        assert "consent revoke RUN --unseen" in caught.value.hint
    assert (tmp_path / REVOKED).read_text() == damaged, "nothing was written over it"
    (tmp_path / REVOKED).unlink()
    consents.revoke("r1", unseen=True)
    assert consents.refused() == ["r1"]


def test_a_clock_that_was_set_back_lets_nothing_leave(tmp_path: Path) -> None:
    consents = Consents(tmp_path)
    consents.give("r1", everything=True)
    before = time.time() + 3600.0  # when it was begun, by a clock that was an hour ahead
    consents.check_since("r1", before)
    consents.revoke("r1")
    with pytest.raises(NoConsent, match="you have refused run r1"):
        consents.check_since("r1", before)


def test_what_was_begun_before_consent_was_taken_back_is_known(tmp_path: Path) -> None:
    consents = Consents(tmp_path)
    before = time.time()
    consents.check_since("r1", before)
    consents.give("r1", everything=True)
    consents.revoke("r1")
    consents.give("r1", everything=True)  # for what is begun from now on
    with pytest.raises(NoConsent, match="taken back your consent to run r1"):
        consents.check_since("r1", before)
    consents.check_since("r2", before)
    consents.check_since("r1", time.time())


def test_consent_that_was_taken_back_by_a_clock_that_was_ahead_can_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun by that clock does not leave, since it may have been begun before."""
    consents, now = Consents(tmp_path), time.time()
    ahead = now + 1e8
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: ahead)
        consents.revoke("r1", unseen=True)
    consents.give("r1", everything=True)
    consents.check_since("r1", time.time())
    for began in (now - 1.0, ahead - 1.0, ahead + 1.0):
        with pytest.raises(NoConsent, match="taken back your consent to run r1"):
            consents.check_since("r1", began)


def test_consent_is_given_shown_and_revoked_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text("privacy: {allow_plain_weights: false}\n")
    settings = read(path, {})
    settings.consents.allows("r1", OPEN["off"])
    released(ledger_of(settings).of("r2"), order(), exact)

    def fedclient(*arguments: object) -> Ended:
        return asyncio.run(call("consent", *arguments, "-c", path))

    shown = fedclient().out
    assert "allow_unprotected: asked for each run" in shown
    assert "allow_plain_weights: never allowed" in shown
    assert f"run r1: {OPEN['off']}: waits for your consent" in shown
    assert "run r2: epsilon 5 was spent for it" in shown
    given = fedclient("give", "r1").out
    assert f"run r1 may have: {OPEN['off']}" in given.splitlines()
    assert "but not what privacy.allow_plain_weights: false in this device's settings rules out" in given
    assert "allow_unprotected" not in given
    assert f"run r1: {OPEN['off']}: allowed" in fedclient().out
    assert fedclient("revoke", "r1").code == 0
    assert f"run r1: {OPEN['off']}: refused" in fedclient().out
    assert fedclient("revoke", "r1").code == NotFound.exit_code
    assert settings.consents.given() == {}


def test_a_rule_is_true_or_false(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text("privacy: {allow_plain_weights: maybe}\n")
    with pytest.raises(ConfigError, match="allow_plain_weights"):
        read(path, {})


def test_the_verb_wants_a_run_and_the_options_of_its_step(tmp_path: Path) -> None:
    wrong: list[tuple[str, ...]] = [
        ("give",),
        ("revoke",),
        ("allow", "r1"),
        ("give", "r1", "--unseen"),
        ("revoke", "r1", "--everything"),
        ("--everything",),
    ]
    for arguments in wrong:
        assert asyncio.run(call("consent", *arguments, "--state", tmp_path)).code == 2
    assert not list(tmp_path.iterdir())
    assert asyncio.run(call("consent", "give", "r1", "--everything", "--state", tmp_path)).code == 0
    shown = asyncio.run(call("consent", "--state", tmp_path, "--json")).data
    assert shown["given"] == {"r1": ["*"]}


def test_on_a_terminal_the_owner_is_asked_and_elsewhere_told_what_to_type(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(f"state: {tmp_path}\n")
    consents = read(path, {}).consents
    for run in ("r1", "r2"):
        assert not consents.allows(run, WEIGHTS)
    verb = [sys.executable, "-m", "fedclient", "consent", "--config", str(path)]
    printed = subprocess.run(verb, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG)
    assert printed.returncode == 0
    assert (
        "to allow it: fedclient consent give r1\nto allow it: fedclient consent give r2\n" in printed.stdout
    )
    assert consents.given() == {}

    ours, terminal = os.openpty()
    os.write(ours, b"y\nn\n")
    asked = subprocess.run(verb, stdin=terminal, capture_output=True, text=True, timeout=HANG)
    os.close(ours)
    os.close(terminal)
    assert asked.returncode == 0, asked.stderr
    assert f"may run r1 have, without a guarantee: {WEIGHTS}? [y/N]" in asked.stderr
    assert asked.stdout == "run r1 may have what it asked for\nrun r2 goes on without this device\n"
    assert consents.given() == {"r1": [WEIGHTS]}
