"""Parameters state what they may be once, and one validator holds every value to that."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from shoal.core.algorithm import Algorithm, TrainingParameters, discover, register, setting
from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Parameters(TrainingParameters):
    rounds: int = 7
    way: Literal["near", "far"] = setting("near", "Which way.")
    share: float = setting(0.5, "A share.", above=0, at_most=1)
    least: int = setting(0, "A count.", unit="devices", at_least=2, zero=True)

    def check(self) -> None:
        super().check()
        if self.way == "far" and self.share == 1.0:
            raise ConfigError("way=far and share=1 do not go together")


NOVA = Algorithm("nova", "for a test", Parameters, "nowhere")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"way": "nera"}, r"nova: parameter way cannot be 'nera'; expected near or far .*near"),
        ({"share": 0}, r"share cannot be 0\.0; expected a number above 0 and at most 1"),
        ({"share": math.nan}, "share cannot be nan"),
        ({"share": math.inf}, "share cannot be inf"),
        ({"share": 10**400}, "share cannot be 1000"),
        ({"least": 1}, "least cannot be 1; expected 0, or a whole number of at least 2"),
        ({"least": True}, "least cannot be True"),
        ({"rounds": 0}, "rounds cannot be 0; expected a whole number of at least 1"),
        ({"roundz": 3}, "no parameter 'roundz'.*rounds"),
        ({"way": "far", "share": 1.0}, "way=far and share=1 do not go together"),
    ],
    ids=str,
)
def test_an_illegal_value_is_refused_with_its_name_and_what_is_legal(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        NOVA.configure("default", changes)


def test_legal_values_are_taken_and_a_changed_default_keeps_range_and_meaning() -> None:
    found = NOVA.configure("default", {"way": "far", "share": 1e-3, "least": 0})
    assert (found.rounds, found.way, found.share, found.least) == (7, "far", 1e-3, 0)
    rounds = NOVA.settings["rounds"]
    assert (rounds.default, rounds.unit, rounds.at_least) == (7, "rounds", 1)
    assert rounds.meaning


def test_no_illegal_parameters_can_be_made_without_a_card_either() -> None:
    with pytest.raises(ConfigError, match="share cannot be 2"):
        Parameters(share=2.0)


@pytest.mark.parametrize("card", discover().values(), ids=discover().keys())
def test_every_parameter_here_has_a_meaning(card: Algorithm) -> None:
    assert not [name for name, each in card.settings.items() if not each.meaning]


def test_what_breaks_a_rule_is_not_registered() -> None:
    with pytest.raises(ConfigError, match="there is no module nowhere"):
        register(NOVA)
    assert "nova" not in discover()
