"""The one update of a cluster that points away from the others while all the others agree.

In a cluster of three to ten devices a single hostile update has a share of 10 to 33 % of the model, which is
enough to turn training around, whatever its length is; with a false claim it has 20 % of a larger one. Length
and weight do not tell it from an honest one, but its direction does: devices of one cluster have similar
data, so their updates point the same way. An honest device with data of its own points elsewhere, too.
Therefore three things must come together:

- the others agree: each of them points the way of the rest, with a median cosine of at least `AGREED`;
- no second update points away from its rest, as in a fleet that consists of groups;
- the cosine between this update and the sum of the others, each at length 1, is below 0.

Then the update is left out of this round. Lengths and claimed numbers of samples play no part in this, and
what is left out can only be one update: two devices that point elsewhere together are a group of their own.
"""

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.clustering.distances import cosines

FEWEST, MOST = 3, 50
"""How many updates there must be to tell who is alone, and up to how many it is asked, because that takes
the products of all pairs."""
AGREED = 0.3
"""The median cosine of the others from which on they agree. Toward the end of training it sinks to 0.1, and
then directions mean little. Chosen on honest fleets of digits with the seeds 41 and 42."""


def lone_opponent(products: FloatArray) -> tuple[int, float] | None:
    """Which update points away from all others, and its cosine with them; None if there is no such update.

    products: (n, n) inner products of the updates, as `clustering.distances` makes them.
    """
    moved = np.flatnonzero(np.diagonal(products) > 0.0)
    if not FEWEST <= len(moved) <= MOST:
        return None
    alike = cosines(products[np.ix_(moved, moved)])
    found = [(one, index) for index in range(len(moved)) if (one := _opposed(alike, index)) < 0.0]
    if not found:
        return None
    cosine, index = min(found)
    return int(moved[index]), cosine


def _opposed(alike: FloatArray, index: int) -> float:
    """The cosine of one update with the sum of the others, if these agree; 0 if they do not.

    alike: (n, n) cosines, the inner products of the updates at length 1.
    """
    others = np.delete(np.arange(len(alike)), index)
    among = alike[np.ix_(others, others)]
    agreement = _with_the_rest(among)
    if agreement.min() < 0.0 or np.median(agreement) < AGREED:
        return 0.0
    return float(alike[index, others].sum() / np.sqrt(among.sum()))


def _with_the_rest(alike: FloatArray) -> FloatArray:
    """(n,): the cosine of each with the sum of the others."""
    own = alike.sum(axis=1)
    squared = np.maximum(alike.sum() - 2.0 * own + 1.0, 0.0)
    found: FloatArray = np.divide(own - 1.0, np.sqrt(squared), out=np.zeros(len(alike)), where=squared > 0.0)
    return found
