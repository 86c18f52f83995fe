"""What every algorithm that describes data by a frozen model shares: the one exchange of latent bounds, and
the projector that follows from it."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, cast

from shoal.core.algorithm import Plan, Report
from shoal.core.exchange.messages import WIDTH, Evaluate
from shoal.core.exchange.parts import LatentBounds, PrivacySettings
from shoal.core.server_kit.clustered import GLOBAL, S
from shoal.core.server_kit.projector import make_projector, merge_bounds, public_projector
from shoal.core.server_kit.standard import metrics_of
from shoal.core.types import DeviceId, Tensors


def ask_bounds(state: S, present: Sequence[DeviceId]) -> Plan:
    """The phase that asks for the bounds of the common model's latents, or, with a guarantee, only for their
    number. The state's parameters are `DescriptorParameters`."""
    asked = state.parameters.asked_privacy
    bounds = WIDTH if asked.calibrated else state.parameters.bounds
    task = Evaluate(state.models[GLOBAL], cluster=GLOBAL, bounds=bounds)
    title = f"{'number' if asked.calibrated else 'bounds'} of the latent values"
    return Plan(dict.fromkeys(present, task), title)


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
