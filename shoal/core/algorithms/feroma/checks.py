"""Parameters of FEROMA that cannot work are refused before a run starts."""

from shoal.core.algorithms.feroma import Parameters
from shoal.core.errors import ConfigError
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.server_kit.frozen_encoder import privacy_of
from shoal.core.server_kit.standard import check_parameters


def privacy(parameters: Parameters) -> PrivacySettings:
    """What is asked of the devices. Raises ConfigError."""
    return privacy_of("feroma", parameters)


def warm_up(parameters: Parameters) -> int:
    """Rounds of FedAvg. One round is always left to map profiles in."""
    return int(parameters.warm_up * parameters.rounds)


def check(parameters: Parameters) -> None:
    """Raises ConfigError naming the parameter."""
    choices = {
        "bounds": ("scalar", "coordinate"),
        "solver": ("auto", "full"),
        "absent": ("minus_one", "beyond"),
        "profile_part": ("train", "held_out"),
        "weighting": ("likeness", "inverse", "softmax"),
        "distance": ("cosine", "euclidean"),
        "distance_at_test": ("likeness", "cosine", "euclidean"),
        "served": ("mixed", "trained"),
        "aggregation": ("mean", "clipped"),
    }
    check_parameters("feroma", parameters, choices, ("rounds", "classes", "dims"))
    if not 0.0 <= parameters.warm_up < 1.0:
        raise ConfigError("feroma parameter warm_up is a share of the rounds, below 1")
    if not 0.0 <= parameters.fading <= 1.0 or parameters.threshold > 1.0:
        raise ConfigError("feroma parameters fading and threshold are shares, at most 1")
    for name in ("masks", "absence", "keep"):
        if getattr(parameters, name) < 0:
            raise ConfigError(f"feroma parameter {name} cannot be below 0")
    if parameters.margin < 1.0:
        raise ConfigError("feroma needs a margin of at least 1")
    asked = privacy(parameters)
    likeness = parameters.weighting == parameters.distance_at_test == "likeness"
    if asked.calibrated and not (likeness and parameters.noise_at_test):
        raise ConfigError(
            "feroma with a privacy guarantee weighs profiles by what their noise lets be told",
            "set weighting=likeness, distance_at_test=likeness and noise_at_test=true",
        )
    if asked.rules.unknown_noise and "likeness" in (parameters.weighting, parameters.distance_at_test):
        raise ConfigError(
            "feroma cannot test profiles with the papers' noise: its size is not known",
            "set weighting=inverse and distance_at_test=euclidean, or privacy=off",
        )
