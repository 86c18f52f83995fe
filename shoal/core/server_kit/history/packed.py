"""The history of a round as bytes, for storage: columns of JSON, compressed.

Numbers are rounded to six digits, and long texts are cut, so that the size of a round is bounded.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import Any, TypeVar

from shoal.core.errors import DataFault
from shoal.core.server_kit.history.records import (
    ClusterRound,
    DeviceRound,
    Digest,
    Position,
    RoundHistory,
    RunEvent,
)
from shoal.core.types import DeviceId

DEVICES, EVENTS, CLUSTERS = 10_000, 100, 1024
"""How many devices, events and clusters of one round are stored."""
REASON, TEXT, REMARKS = 120, 400, 3
"""How many characters of why a device is missing, of an event or of a remark, and how many remarks of a
cluster."""
PARTS = ("clusters", "events", "devices", "positions", "digest")
"""The fields of a round that are tables of their own."""
PLAIN = tuple(each.name for each in fields(RoundHistory) if each.name not in PARTS)

T = TypeVar("T")


def bounded(round: RoundHistory) -> RoundHistory:
    """The round with no more than is stored of it."""
    clusters = tuple(
        replace(each, remarks=tuple(text[:TEXT] for text in each.remarks[:REMARKS]))
        for each in round.clusters[:CLUSTERS]
    )
    return replace(
        round,
        title=round.title[:TEXT],
        abandoned=round.abandoned[:TEXT],
        clusters=clusters,
        events=tuple(replace(each, text=each.text[:TEXT]) for each in round.events[:EVENTS]),
        devices=tuple(replace(each, missing=each.missing[:REASON]) for each in round.devices[:DEVICES]),
        left_out=round.left_out + max(0, len(round.devices) - DEVICES),
        positions=_first(round.positions),
        digest=round.digest and replace(round.digest, assigned=_first(round.digest.assigned)),
    )


def _first(of_devices: Mapping[DeviceId, T]) -> dict[DeviceId, T]:
    return dict(islice(of_devices.items(), DEVICES))


def pack(round: RoundHistory) -> tuple[bytes, bytes]:
    """The round without its devices, and what is known of its devices."""
    plain = {name: _short(getattr(round, name)) for name in PLAIN}
    digest = round.digest and {name: _short(value) for name, value in vars(round.digest).items()}
    summary = {"clusters": _columns(round.clusters), "events": _columns(round.events), "digest": digest}
    placed, places = list(round.positions), _columns(tuple(round.positions.values()))
    devices = {"devices": _columns(round.devices), "placed": placed, "positions": places}
    return _deflated({**plain, **summary}), _deflated(devices)


def unpack(summary: bytes, devices: bytes = b"") -> RoundHistory:
    """The round. devices: what is known of its devices; b"" leaves them out.

    Raises DataFault if the bytes are not those of a round.
    """
    try:
        plain = _inflated(summary)
        found = RoundHistory(
            **{
                **{name: plain[name] for name in PLAIN},
                "clusters": tuple(_rows(ClusterRound, plain["clusters"])),
                "events": tuple(_rows(RunEvent, plain["events"])),
                "digest": plain["digest"] and Digest(**plain["digest"]),
            }
        )
        if not devices:
            return found
        tables = _inflated(devices)
        return replace(
            found,
            devices=tuple(_rows(DeviceRound, tables["devices"])),
            positions=dict(zip(tables["placed"], _rows(Position, tables["positions"]), strict=True)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise DataFault(f"the history of a round cannot be read: {error}", "restore a backup") from None


def _columns(rows: Sequence[Any]) -> dict[str, list[Any]]:
    if not rows:
        return {}
    return {each.name: [_short(getattr(row, each.name)) for row in rows] for each in fields(rows[0])}


def _rows(kind: Callable[..., T], columns: dict[str, list[Any]]) -> Iterable[T]:
    names = [each.name for each in fields(kind) if columns]  # type: ignore[arg-type]
    values = (map(_frozen, columns[name]) for name in names)
    return [kind(**dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)]


def _short(value: Any) -> Any:
    """Six digits are enough for people; a time needs more."""
    if not isinstance(value, float):
        return value
    return round(value, 3) if abs(value) >= 1e6 else float(f"{value:.6g}")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _deflated(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def _inflated(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))
