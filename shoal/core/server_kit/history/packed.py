"""The history of a round as bytes, for storage: columns of JSON, compressed.

The columns are named, so what a later version adds has its default in what an earlier one wrote. Numbers are
rounded to six digits, and long texts are cut, so that the size of a round is bounded.
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
    summary = {**plain, "clusters": _columns(round.clusters), "events": _columns(round.events)}
    if round.digest is not None:
        summary["digest"] = {name: _short(value) for name, value in vars(round.digest).items()}
    places = {"device": list(round.positions), **_columns(tuple(round.positions.values()))}
    return _deflated(summary), _deflated({"devices": _columns(round.devices), "positions": places})


def unpack(summary: bytes, devices: bytes = b"") -> RoundHistory:
    """The round. devices: what is known of its devices; b"" leaves them out.

    Raises DataFault if the bytes are not those of a round.
    """
    try:
        plain = _inflated(summary)
        found = RoundHistory(
            **{
                **{name: value for name, value in plain.items() if name in PLAIN},
                "clusters": tuple(_rows(ClusterRound, plain["clusters"])),
                "events": tuple(_rows(RunEvent, plain["events"])),
                "digest": _digest(plain.get("digest")),
            }
        )
        if not devices:
            return found
        tables = _inflated(devices)
        named = tables["positions"]["device"]
        return replace(
            found,
            devices=tuple(_rows(DeviceRound, tables["devices"])),
            positions=dict(zip(named, _rows(Position, tables["positions"]), strict=True)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise DataFault(f"the history of a round cannot be read: {error}", "restore a backup") from None


def _digest(found: dict[str, Any] | None) -> Digest | None:
    known = {each.name for each in fields(Digest)}
    return None if found is None else Digest(**{key: found[key] for key in known & found.keys()})


def _columns(rows: Sequence[Any]) -> dict[str, list[Any]]:
    if not rows:
        return {}
    return {each.name: [_short(getattr(row, each.name)) for row in rows] for each in fields(rows[0])}


def _rows(kind: Callable[..., T], columns: dict[str, list[Any]]) -> Iterable[T]:
    names = {each.name for each in fields(kind)} & columns.keys()  # type: ignore[arg-type]
    known = {name: map(_frozen, columns[name]) for name in sorted(names)}
    return [kind(**dict(zip(known, row, strict=True))) for row in zip(*known.values(), strict=True)]


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
