"""The kinds of faults, by name, and how often each comes in a campaign."""

from tests.chaos.kinds import crashes, disks, network, processes
from tests.chaos.kinds.kind import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*processes.KINDS, *crashes.KINDS, *network.KINDS, *disks.KINDS)
}
