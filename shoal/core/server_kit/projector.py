"""The one projector of a run, made on the server and never on a device: from latent bounds, merged, as in the
papers; or from nothing but public numbers, for the calibrated privacy modes."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from sklearn.decomposition import PCA

from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import LatentBounds
from shoal.core.types import Tensors

POINTS = 200
SEED = 1
LENGTH = 2
"""Numbers in which standardized latents tell their length (`shoal.core.device_kit.describe.standardized`)."""


def merge_bounds(bounds: Iterable[LatentBounds], margin: float) -> LatentBounds:
    """Coordinate-wise lowest low and highest high (FLUX C.1.1, S1), both moved outwards by a factor `margin`.

    The order of the parts does not matter. Raises BadPayload when they are of different encoders or widths.
    """
    parts = list(bounds)
    if len({(part.low.size, part.epoch) for part in parts}) != 1:
        raise BadPayload("latent bounds of different widths or encoders cannot be merged")
    low = np.min([part.low for part in parts], axis=0)
    high = np.max([part.high for part in parts], axis=0)
    spread = margin - 1.0
    provenance = "raw" if any(part.provenance == "raw" for part in parts) else parts[0].provenance
    return LatentBounds(low - spread * np.abs(low), high + spread * np.abs(high), provenance, parts[0].epoch)


def make_projector(
    bounds: LatentBounds, latents: int, dims: int, solver: Literal["auto", "full"] = "full"
) -> Tensors:
    """PCA of 200 points drawn uniformly between the bounds (FLUX C.1.1, S2): v latents to l dims.

    bounds: (v,) or (1,), one pair for all. Returns "mean" (v,) and "components" (l, v), float64; l is at
    most `dims`, 200 and v. The points come from the legacy generator with seed 1, as in the authors' code.

    solver: "full" gives the same projector with every version of scikit-learn; "auto", what the authors
    ran, is randomised above 500 latents and then goes on with the same generator.
    """
    chance = np.random.RandomState(SEED)
    points = chance.uniform(bounds.low, bounds.high, (POINTS, latents))
    fitted = PCA(min(dims, POINTS, latents), svd_solver=solver, random_state=chance).fit(points)
    return {"mean": fitted.mean_, "components": np.ascontiguousarray(fitted.components_)}


def public_projector(latents: int, dims: int) -> Tensors:
    """A projector with a radius, which takes nothing from any device: v latents to l dims, or a few less.

    "components" (l, v + 2), for latents that are standardized before
    (`shoal.core.device_kit.describe.standardized`): d = l - 2 random orthonormal rows, at least one, for the
    directions of latents, and the two numbers of the length, which weigh as two directions do on average.
    "mean" is 0.

    "radius" (), to which projected latents are shortened: the root of (d + 2 sqrt(2 d) + 2) / v. Of a random
    direction that is the mean squared length that is left, and twice its standard deviation. So it is public,
    and few samples are shortened.
    """
    directions = max(min(dims - LENGTH, latents), 1)
    normal = np.random.RandomState(SEED).standard_normal((latents, directions))
    basis, upper = np.linalg.qr(normal)
    components = np.zeros((directions + LENGTH, latents + LENGTH))
    components[:directions, :latents] = (basis * np.sign(np.diag(upper))).T
    of_length = LENGTH / latents
    components[directions:, latents:] = np.sqrt(of_length) * np.eye(LENGTH)
    left = min(1.0, (directions + 2.0 * np.sqrt(2.0 * directions)) / latents)
    return {
        "mean": np.zeros(latents + LENGTH),
        "components": components,
        "radius": np.array(np.sqrt(left + of_length)),
    }
