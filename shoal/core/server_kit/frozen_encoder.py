"""What every algorithm that describes data by a frozen model shares: the privacy that is asked for, the one
exchange of latent bounds, and the projector that comes of it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, cast

from shoal.core.algorithm import Report
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.exchange.messages import WIDTH, Evaluate
from shoal.core.exchange.parts import LatentBounds, PrivacySettings
from shoal.core.exchange.privacy_modes import mode_of
from shoal.core.server_kit.projector import make_projector, merge_bounds, public_projector
from shoal.core.server_kit.standard import metrics_of
from shoal.core.types import ModelKey, Tensors


def privacy_of(algorithm: str, parameters: Any) -> PrivacySettings:
    """What is asked of the devices, by the parameters privacy, epsilon, delta and group_size.

    A mode that has its numbers needs none. Raises ConfigError.
    """
    mode, numbers = parameters.privacy, (parameters.epsilon, parameters.delta)
    try:
        if numbers == (0.0, 0.0):
            numbers = mode_of(mode).guarantee or numbers
        return PrivacySettings(mode, *numbers, parameters.group_size)
    except BadPayload as fault:
        raise ConfigError(f"{algorithm}: {fault.message}", fault.hint) from None


def bounds_task(model: Tensors, key: ModelKey, privacy: PrivacySettings, bounds: str) -> Evaluate:
    """Ask for the bounds of the latents of `model`, or, with a guarantee, for their number alone."""
    return Evaluate(model, cluster=key, bounds=WIDTH if privacy.calibrated else bounds)


def bounds_title(privacy: PrivacySettings) -> str:
    """What `bounds_task` asks for, for people."""
    return f"{'number' if privacy.calibrated else 'bounds'} of the latent values"


def merged_bounds(
    reports: Sequence[Report], privacy: PrivacySettings, margin: float
) -> tuple[LatentBounds | None, int]:
    """The bounds of all devices' latents, None with a guarantee, and how many latents there are."""
    measured = [each for _, each in sorted(metrics_of(reports).items()) if each.latents]
    # One device with another network must not spoil the projector of all others.
    width = Counter(each.latents for each in measured).most_common(1)[0][0]
    if privacy.calibrated:
        return None, width
    found = (each.bounds for each in measured if each.bounds is not None and each.latents == width)
    return merge_bounds(found, margin), width


def projector_of(
    bounds: LatentBounds | None, latents: int, privacy: PrivacySettings, dims: int, solver: str
) -> Tensors:
    """The projector of a run, of the merged bounds; with a guarantee, of public numbers. solver: of the PCA,
    "auto" or "full"."""
    if privacy.calibrated:
        return public_projector(latents, dims)
    assert bounds is not None
    return make_projector(bounds, latents, dims, cast(Literal["auto", "full"], solver))
