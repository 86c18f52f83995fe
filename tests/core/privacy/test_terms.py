"""What each mode releases, at which noise, and when it refuses."""

import pytest

from shoal.core.errors import BadPayload, Refused
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.privacy.cost import epsilon_of, group, rho_of
from shoal.core.privacy.terms import terms

BALANCED, STRICT = PrivacySettings("balanced", 5.0, 1e-6), PrivacySettings("strict", 1.0, 1e-6)


@pytest.mark.parametrize("settings", [BALANCED, STRICT, PrivacySettings("explicit", 2.5, 1e-9)])
@pytest.mark.parametrize("samples", [300, 6_000, 1_000_000])
@pytest.mark.parametrize("size", [1, 3])
def test_the_noise_holds_what_the_settings_say(settings: PrivacySettings, samples: int, size: int) -> None:
    if settings.mode == "explicit":
        settings = PrivacySettings("explicit", settings.epsilon, settings.delta, size)
    try:
        found = terms(settings, samples, 0)
    except Refused:
        assert (settings.group_size, samples) == (3, 300)
        return
    assert found.rho == pytest.approx(rho_of(found.sigma), rel=1e-12)
    assert epsilon_of(group(found.rho, settings.group_size), found.delta) <= settings.epsilon * (1 + 1e-12)
    assert found.delta <= min(settings.delta, 1 / (100 * samples))


def test_the_numbers_of_the_two_modes() -> None:
    balanced, strict = terms(BALANCED, 300, 10), terms(STRICT, 300, 10)
    assert balanced.sigma == pytest.approx(1.039, abs=0.001)
    assert strict.sigma == pytest.approx(4.531, abs=0.001)
    assert terms(BALANCED, 100_000, 10).delta == 1e-7


@pytest.mark.parametrize(
    ("settings", "samples", "classes"),
    [(BALANCED, 222, 0), (BALANCED, 223, 10), (STRICT, 1499, 0), (STRICT, 1500, 10)],
)
def test_classes_are_released_where_an_average_one_has_enough_samples(
    settings: PrivacySettings, samples: int, classes: int
) -> None:
    assert terms(settings, samples, 10).classes == classes


def test_a_newcomer_is_asked_for_no_classes() -> None:
    assert terms(BALANCED, 6000, 0).classes == 0


@pytest.mark.parametrize(("settings", "least"), [(BALANCED, 65), (STRICT, 284)])
def test_too_few_samples_are_refused_with_the_reason_and_the_hint(
    settings: PrivacySettings, least: int
) -> None:
    terms(settings, least, 10)
    with pytest.raises(Refused, match=f"{least - 1} samples are too few.*at least {least} samples"):
        terms(settings, least - 1, 10)
    with pytest.raises(Refused):
        terms(settings, 0, 10)


@pytest.mark.parametrize("settings", [PrivacySettings(), PrivacySettings("paper", 1.0)])
def test_a_mode_without_guarantee_has_no_terms(settings: PrivacySettings) -> None:
    with pytest.raises(ValueError, match="has no terms"):
        terms(settings, 300, 10)


def test_a_named_mode_cannot_carry_other_numbers() -> None:
    with pytest.raises(BadPayload, match="balanced has epsilon 5"):
        PrivacySettings("balanced", 50.0, 1e-6)
    with pytest.raises(BadPayload, match="no delta"):
        PrivacySettings("explicit", 1.0)
    with pytest.raises(BadPayload, match="group of 2"):
        PrivacySettings("paper", 1.0, 0.0, 2)
