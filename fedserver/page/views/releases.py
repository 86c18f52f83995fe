"""The releases, and the channels that name those in use."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedserver.coordinator.status_types import ReleaseSummary, RolloutStatus
from fedserver.page.views.texts import name, words
from fedserver.store.releases import Move


def document(
    found: Iterable[ReleaseSummary],
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
                "moves": [_move(move) for move in reversed(moves)],
                "rollout": next((_rollout(each) for each in rollouts if each.channel == channel), None),
            }
            for channel, moves in channels.items()
        ],
        "releases": [_release(each) for each in found],
    }


def _move(found: Move) -> dict[str, Any]:
    return {"release": name(found.release), "at": found.at, "why": words(found.why)}


def _rollout(found: RolloutStatus) -> dict[str, Any]:
    return {
        "release": name(found.new),
        "share": found.share,
        "margin": found.margin,
        "began": found.began,
        "ended": found.ended,
        "outcome": found.outcome,
        "why": words(found.why),
        "clusters": [{"key": name(key), **asdict(own)} for key, own in found.clusters.items()],
    }


def _release(found: ReleaseSummary) -> dict[str, Any]:
    return {
        "release": name(found.release),
        "made": found.made,
        "progress": found.progress,
        "devices": found.devices,
        "accuracy": found.accuracy,
        "error": found.error,
        "groups": [
            {"key": name(each.key), "devices": each.devices, "accuracy": each.accuracy, "error": each.error}
            for each in found.groups
        ],
        "watched": [
            {
                "key": name(each.key),
                "answers": each.answers,
                "share": each.share,
                "error": each.error,
                "since": each.since,
            }
            for each in found.watched
        ],
        "signed": name(found.authority),
        "channels": list(map(name, found.channels)),
        "revoked": list(map(name, (*found.revoked, *found.withdrawn))),
        "wrong": words(found.wrong),
    }
