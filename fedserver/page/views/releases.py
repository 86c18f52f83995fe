"""The releases, and the channels that name those in use."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedserver.coordinator.status_types import ReleaseSummary, RolloutStatus
from fedserver.page.views.records import shown
from fedserver.page.views.texts import name
from fedserver.store.records import Move


def document(
    found: Sequence[ReleaseSummary],
    channels: Mapping[str, Sequence[Move]],
    rollouts: Sequence[RolloutStatus],
) -> dict[str, Any]:
    """Channels with what each was given, the newest first, and their latest rollout; releases with the
    figures of their groups.

    An error is a standard error, of a mean over devices by how few their samples are.
    """
    return {
        "channels": [
            {
                "channel": name(channel),
                "pinned": moves[-1].pinned,
                "moves": shown(moves[::-1]),
                "rollout": next((shown(each) for each in rollouts if each.channel == channel), None),
            }
            for channel, moves in channels.items()
        ],
        "releases": shown(found),
    }
