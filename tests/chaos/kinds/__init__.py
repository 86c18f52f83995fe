"""The kinds of faults, by name, and how often each comes in a campaign."""

from tests.chaos.kinds import crashes, disks, network, processes, rot
from tests.chaos.kinds.kind import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*processes.KINDS, *crashes.KINDS, *network.KINDS, *disks.KINDS, *rot.KINDS)
}

GROUPS: dict[str, list[str]] = {"crash-points": [kind.name for kind in crashes.KINDS]}
"""Names for many kinds at once."""


def named(names: list[str]) -> list[str]:
    """The kinds of these names, each group in full. Raises KeyError for a name that is none."""
    return [name for given in names for name in GROUPS.get(given) or [KINDS[given].name]]
