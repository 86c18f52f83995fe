"""A privacy mode is one record: algorithms, releases and the wire take a new one with no other change."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithms.flux import Parameters
from shoal.core.algorithms.flux.clustering import check
from shoal.core.errors import BadPayload
from shoal.core.exchange import privacy_modes, wire
from shoal.core.exchange._pb.fed.v1 import privacy_pb2
from shoal.core.exchange.parts import NoisySums, PrivacySettings
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.privacy_modes import MODES, Mechanism, PrivacyMode
from shoal.core.privacy.release import release_sums
from shoal.core.privacy.sums import sums_of
from shoal.core.privacy.terms import terms
from shoal.core.server_kit.estimates import estimate
from shoal.core.server_kit.frozen_encoder import privacy_of

MEDIUM = PrivacyMode("medium", 77, Mechanism.DISCRETE_GAUSSIAN, (3.0, 1e-7), samples_per_class=500)


@pytest.fixture
def medium(monkeypatch: pytest.MonkeyPatch) -> PrivacySettings:
    with pytest.raises(BadPayload, match="'medium' is not known"):
        PrivacySettings("medium", 3.0, 1e-7)
    monkeypatch.setattr(privacy_modes, "MODES", {**MODES, "medium": MEDIUM})
    return PrivacySettings("medium", 3.0, 1e-7)


def test_one_record_adds_a_mode(medium: PrivacySettings) -> None:
    parameters = replace(Parameters(), privacy="medium")
    check(parameters)
    assert privacy_of("flux", parameters) == medium
    with pytest.raises(BadPayload, match=r"medium has epsilon 3.0 and delta 1e-07"):
        PrivacySettings("medium", 4.0, 1e-7)

    agreed = terms(medium, 1000, 3)
    assert agreed.classes == 0, "1000 samples are fewer than 500 for each of 3 classes"
    assert terms(medium, 1500, 3).classes == 3
    latents = np.random.default_rng(0).normal(size=(1000, 2))
    descriptor = release_sums(sums_of([(latents, None)], 2.0, 2, 0), medium, agreed, "ab" * 32)

    sent = wire.payload_to_bytes(Payload("described", {"descriptor": descriptor}))
    found = wire.payload_from_bytes(sent).parts["descriptor"]
    assert type(found) is type(descriptor)
    assert found.privacy == medium
    assert isinstance(found.statistics, NoisySums)
    assert estimate(found).counts[0] == pytest.approx(1000, abs=200)


def test_the_contract_names_the_same_modes() -> None:
    names = {f"PRIVACY_MODE_{mode.name.upper()}": mode.number for mode in MODES.values()}
    assert dict(privacy_pb2.PrivacyMode.items()) == {"PRIVACY_MODE_UNSPECIFIED": 0, **names}
