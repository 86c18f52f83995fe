"""A privacy mode is one record: algorithms, releases and the wire take a new one with no other change."""

import subprocess
import sys

import pytest

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import privacy_pb2
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.exchange.privacy_modes import MODES
from tests.waiting import HANG

WITH_A_RECORD = """
from shoal.core.exchange import privacy_modes
from shoal.core.exchange.privacy_modes import Mechanism, PrivacyMode

medium = PrivacyMode("medium", 77, Mechanism.DISCRETE_GAUSSIAN, (3.0, 1e-7), samples_per_class=500)
privacy_modes.MODES = {**privacy_modes.MODES, "medium": medium}

import numpy as np
from shoal.core.algorithms.flux import ALGORITHM
from shoal.core.errors import BadPayload
from shoal.core.exchange import wire
from shoal.core.exchange.parts import NoisySums, PrivacySettings
from shoal.core.exchange.payload import Payload
from shoal.core.privacy.release import release_sums
from shoal.core.privacy.sums import sums_of
from shoal.core.privacy.terms import terms
from shoal.core.server_kit.estimates import estimate

asked = ALGORITHM.configure("default", {"privacy": "medium"}).asked_privacy
assert asked == PrivacySettings("medium", 3.0, 1e-7), asked
try:
    PrivacySettings("medium", 4.0, 1e-7)
except BadPayload as fault:
    assert "medium has epsilon 3.0 and delta 1e-07" in str(fault)
else:
    raise AssertionError("other numbers were taken")

agreed = terms(asked, 1000, 3)
assert agreed.classes == 0, "1000 samples are fewer than 500 for each of 3 classes"
assert terms(asked, 1500, 3).classes == 3
latents = np.random.default_rng(0).normal(size=(1000, 2))
descriptor = release_sums(sums_of([(latents, None)], 2.0, 2, 0), asked, agreed, "ab" * 32)

sent = wire.payload_to_bytes(Payload("described", {"descriptor": descriptor}))
found = wire.payload_from_bytes(sent).parts["descriptor"]
assert found.privacy == asked
assert isinstance(found.statistics, NoisySums)
assert abs(estimate(found).counts[0] - 1000) < 200
"""


def test_one_record_adds_a_mode() -> None:
    with pytest.raises(BadPayload, match="'medium' is not known"):
        PrivacySettings("medium", 3.0, 1e-7)
    line = [sys.executable, "-c", WITH_A_RECORD]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr


def test_the_contract_names_the_same_modes() -> None:
    names = {f"PRIVACY_MODE_{mode.name.upper()}": mode.number for mode in MODES.values()}
    assert dict(privacy_pb2.PrivacyMode.items()) == {"PRIVACY_MODE_UNSPECIFIED": 0, **names}
