"""FedAvg with DP-SGD on real digits: devices whose owners let nothing leave without a guarantee."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fedclient.store.privacy_report import statement
from fedserver.cli import text
from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.records import RunSpec
from shoal.core.privacy import payment
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Failed, Open, Release, chosen, paid
from shoal.core.privacy.report import WEIGHTS
from shoal.demo import fleet, processes
from tests.server.store.released import releases

from .test_private_run import ledger, member, refuse, train

DEVICES, ROUNDS = 2, 3
TRAINING = {"rounds": ROUNDS, "epochs": 1, "batch_size": 64, "learning_rate": 0.2, "evaluate": False}
PRIVATE = {**TRAINING, "dp_epsilon": 4.0}
POLICY = replace(fleet.POLICY, devices=DEVICES, minimum=DEVICES, max_abandoned_rounds=1)


def spec(name: str, parameters: dict[str, object]) -> RunSpec:
    return replace(processes.spec("fedavg"), name=name, parameters=parameters, policy=POLICY)  # type: ignore[arg-type]


STRICT = {"rounds": 4, "epochs": 1, "batch_size": 64, "learning_rate": 0.2, "dp_epsilon": 3.0}
OWN = {"flux": {"earliest": 1}, "feroma": {"warm_up": 0.25}}


@pytest.mark.parametrize("algorithm", OWN)
def test_a_run_finishes_where_nothing_may_leave_in_the_open(algorithm: str, tmp_path: Path) -> None:
    """Each device then has one epsilon, and the server says the same."""
    pytest.importorskip("opacus")
    budget = Budget(allow_unprotected=False, allow_plain_weights=False)
    members = [member(number) for number in range(DEVICES)]
    run = replace(
        processes.spec("flux"),
        algorithm=algorithm,
        name="strict",
        parameters={**STRICT, **OWN[algorithm], "privacy": "explicit", "epsilon": 3.0, "delta": 1e-6},
        policy=POLICY,
    )

    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path / "server", Settings(tick=0.05))
        try:
            await OperatorApi(coordinator).start_run(run, None)
            await asyncio.gather(*(train(coordinator, tmp_path, each, budget) for each in members))
            status = await OperatorApi(coordinator).show("strict")
            lines = [line.text for line in await OperatorApi(coordinator).log("strict", 0)]
            assert status.summary.stage == "finished", lines
            assert any("final evaluation" in line and "accuracy" in line for line in lines)
            for each in members:
                entries = ledger(tmp_path, each, budget).verify()
                kinds = (payment.TRAINING, payment.DESCRIPTOR, payment.ACCURACY)
                assert [len(paid(entries, kind)) for kind in kinds] == [4, 1, 1]
                assert chosen(entries, Open) == chosen(entries, Failed) == []
                own = statement(entries, budget)
                assert 4.2 < own.epsilon < 4.5
                assert str(own) == f"epsilon {own.epsilon:.4g} at delta 1e-06"
                assert status.released[each.name].epsilon == pytest.approx(own.epsilon)
        finally:
            await coordinator.close()

    asyncio.run(play())


def test_every_report_tells_the_same_epsilon_and_a_run_without_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    budget = Budget(allow_unprotected=False, allow_plain_weights=False)
    members = [member(number) for number in range(DEVICES)]

    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path / "server", Settings(tick=0.05))
        try:
            await OperatorApi(coordinator).start_run(spec("first", PRIVATE), None)
            await asyncio.gather(*(train(coordinator, tmp_path, each, budget) for each in members))
            status = await OperatorApi(coordinator).show("first")
            assert status.summary.stage == "finished"
            for each in members:
                entries = ledger(tmp_path, each, budget).verify()
                assert len(paid(entries, payment.TRAINING)) == len(chosen(entries, Release)) == ROUNDS
                assert chosen(entries, Open) == []
                of_server = status.released[each.name]
                assert of_server.epsilon == pytest.approx(statement(entries, budget).epsilon)
                assert 3.9 < of_server.epsilon <= 4.0
                noted = await coordinator.storage.call(releases, coordinator.storage.store.database, "first")
                assert {each.release for each in chosen(entries, Release)} <= {each.release for each in noted}
            shown = text.privacy(status.released, status.central)
            assert shown[-1].startswith(
                f"weights: DP-SGD on each of {DEVICES} devices, with its other releases"
            )
            assert f"epsilon {of_server.epsilon:.4g} at delta 1e-06" in shown[-1]

            for name, parameters, reason in (
                (
                    "second",
                    {**PRIVATE, "dp_epsilon": 40.0},
                    "it failed: the owner's privacy budget has too little left",
                ),
                ("plain", TRAINING, "it failed: the device's owner lets nothing leave without"),
            ):
                await OperatorApi(coordinator).start_run(spec(name, parameters), None)
                status = await refuse(coordinator, tmp_path, members, budget, name)
                lines = [line.text for line in await OperatorApi(coordinator).log(name, 0)]
                assert sum(reason in line for line in lines) >= DEVICES
                assert text.privacy(status.released) == [WEIGHTS]
        finally:
            await coordinator.close()

    asyncio.run(play())
