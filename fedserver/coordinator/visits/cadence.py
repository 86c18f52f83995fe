"""How often a fleet calls when it has nothing to do, and after it has lost the server at one moment.

Both depend on how many devices there are, so that what they cost the server does not grow with them.
"""

from fedserver.config import Settings

RETURNS, FURTHEST = 25.0, 45.0
"""How many devices should reconnect per second after all have lost the server at once, and the most seconds
over which their return is spread."""
POLLS, SHARE = 25.0, 1 / 8
"""How many calls that have waited for a task in vain should end per second, since each costs as much as a
report; and the largest share of a connection's lifetime that such a call may last."""


def spread(fleet: int) -> float:
    """The seconds over which devices should spread their return after they lose the connection."""
    return min(max(1.0, fleet / RETURNS), FURTHEST)


def poll(fleet: int, settings: Settings) -> float:
    """The seconds for which a device should wait for a task in one call. Up to 500 devices: `settings.poll`.

    A longer wait hides nothing: what is new for a device ends it, and a connection that is lost is found by
    its pings.
    """
    return max(settings.poll, min(fleet / POLLS, SHARE * settings.age))
