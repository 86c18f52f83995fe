"""Newcomers of runs that cannot place without labels: they show losses, or mean embeddings."""

from pathlib import Path

import numpy as np
import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.store.journal import released
from shoal.core.errors import BadPayload
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.parts import Evidence, Prototypes, Scores
from shoal.core.privacy.report import OPEN
from tests.server.servers import scenario, start
from tests.server.store.released import releases, statements


def test_losses_of_the_runs_models_find_the_best_and_its_blob_may_be_fetched(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="ifca", algorithm="ifca")
        newcomer = DeviceApi(coordinator, "newcomer")
        question = await newcomer.place("ifca", None)
        assert isinstance(question, Question)
        assert (question.run, question.payload.kind) == ("ifca", "score")
        assert len(question.payload.weights()) == 4
        answer = await newcomer.place("ifca", Scores(np.array([3.0, 2.0, 0.5, 1.0]), 9))
        assert isinstance(answer, Placement)
        assert (answer.assignment.cluster, answer.assignment.runner_up) == ("c2", "c3")
        assert answer.model is not None
        assert b"".join([piece async for piece in newcomer.fetch(answer.model.blob, 0)])
        again = await newcomer.place("ifca", Scores(np.array([0.1, 2.0, 0.5, 1.0]), 9))
        assert isinstance(again, Placement)
        assert again.assignment.cluster == "c0"

    scenario(story, tmp_path)


def test_what_a_newcomer_shows_is_noted_among_what_it_has_released(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="ifca", algorithm="ifca")
        for _ in range(2):
            await DeviceApi(coordinator, "d0").place("ifca", Scores(np.ones(4), 9))
        prototypes = Prototypes(np.zeros(1), np.ones((1, 2)), np.ones(1))
        await released.record_evidence(coordinator.storage, "ifca", "d1", prototypes)
        found = statements(
            await coordinator.storage.call(releases, coordinator.storage.store.database, "ifca")
        )
        assert found["d0"].unprotected == (OPEN["figures"],)
        assert found["d1"].unprotected == (OPEN["prototypes"],)

    scenario(story, tmp_path)


@pytest.mark.parametrize(
    ("evidence", "problem"),
    [
        (Scores(np.ones(3), 9), "expected the losses of 4 models, got 3"),
        (Scores(np.ones(4), 0), "0 samples"),
        (Scores(np.full(4, 1e50), 9), "values above"),
        (Prototypes(np.zeros(1), np.ones((1, 2)), np.ones(1)), "got Prototypes, expected a 'scored' answer"),
    ],
)
def test_evidence_that_is_no_answer_to_the_question_is_refused(
    tmp_path: Path, evidence: Evidence, problem: str
) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="ifca", algorithm="ifca")
        with pytest.raises(BadPayload, match=problem):
            await DeviceApi(coordinator, "newcomer").place("ifca", evidence)

    scenario(story, tmp_path)
