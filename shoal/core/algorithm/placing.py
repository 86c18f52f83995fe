"""The parameter of all algorithms that keep several models: how a newcomer gets one of them."""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm.settings import setting

OWN_MODELS = "own_models"
"""A newcomer tries the clusters' models on its own samples, and chooses; nothing about its data leaves it."""
VOTE = "vote"
"""A newcomer names one cluster by a private vote of its samples, and gets that cluster's model only."""


@dataclass(frozen=True)
class PlacingParameters:
    """For algorithms whose paper has a way of its own to place newcomers, or none without labels."""

    placing: Literal["own_models", "paper"] = setting(
        "own_models",
        "own_models: a newcomer tries the clusters' models on its own samples; it needs no labels, and "
        "nothing about its data leaves it. paper: as in the paper, which may require labels.",
    )
