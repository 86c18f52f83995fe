"""The fields of a protobuf message, read strictly: as much of the encoding as ONNX files use.

The protobuf package would need the generated code of ONNX, and would read what we have to refuse. A message
is read into its fields, by number, and nothing is followed further than the caller asks.
"""

from collections.abc import Iterable, Iterator, Mapping

from shoal.core.errors import BadPayload

Value = int | memoryview
"""A number, or the bytes of a text, of a message or of packed numbers. Floats of four bytes stay bytes."""
HINT = "export the graph again with `fedclient export`"
VARINT, EIGHT, LENGTH, FOUR = 0, 1, 2, 5
_SIZES = {EIGHT: 8, FOUR: 4}


class Fields:
    """The fields of one message. what: for errors. known: field number -> whether it may be repeated.

    Raises BadPayload for bytes that are no message, for a field that is not known, and for one that is there
    twice and may not be: protobuf would merge the two, and every reader would have to do so alike.
    """

    def __init__(self, data: memoryview, known: Mapping[int, bool], what: str) -> None:
        self.what = what
        self._values: dict[int, list[Value]] = {}
        for number, value in fields(data, what):
            if number not in known:
                raise BadPayload(f"{what} has the field {number}, which is not taken", HINT)
            values = self._values.setdefault(number, [])
            if values and not known[number]:
                raise BadPayload(f"{what} has the field {number} twice", HINT)
            values.append(value)

    def all(self, number: int) -> list[memoryview]:
        """The bytes of each value of a field."""
        return [self._bytes(number, value) for value in self._values.get(number, ())]

    def bytes(self, number: int) -> memoryview:
        """The bytes of a field; none where it is not there."""
        return next(iter(self.all(number)), memoryview(b""))

    def text(self, number: int) -> str:
        """The text of a field; "" where it is not there."""
        return text(self.bytes(number), self.what)

    def texts(self, number: int) -> list[str]:
        return [text(each, self.what) for each in self.all(number)]

    def number(self, number: int) -> int:
        """The number in a field; 0 where it is not there."""
        return next(iter(self.numbers(number)), 0)

    def numbers(self, number: int) -> list[int]:
        """The numbers in a field, packed or not."""
        found: list[int] = []
        for value in self._values.get(number, ()):
            found += [value] if isinstance(value, int) else list(_packed(value, self.what))
        return found

    def has(self, number: int) -> bool:
        return number in self._values

    def _bytes(self, number: int, value: Value) -> memoryview:
        if isinstance(value, int):
            raise BadPayload(f"{self.what}: the field {number} is a number", HINT)
        return value


def fields(data: memoryview, what: str) -> Iterator[tuple[int, Value]]:
    """The fields of a message in their order, with their numbers. Raises BadPayload."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place, what)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = _varint(data, place, what)
            yield number, value
            continue
        if kind == LENGTH:
            size, place = _varint(data, place, what)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise _broken(what)
        if number == 0 or size > len(data) - place:
            raise _broken(what)
        yield number, data[place : place + size]
        place += size


def field(number: int, value: bytes | str | int) -> bytes:
    """One field, written. A text is UTF-8."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | LENGTH) + varint(len(content)) + content


def message(parts: Iterable[tuple[int, bytes | str | int]]) -> bytes:
    """A message of these fields, in this order."""
    return b"".join(field(number, value) for number, value in parts)


def varint(value: int) -> bytes:
    """A number from 0 to 2^64 - 1. A negative one is its two's complement."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def signed(value: int) -> int:
    """An int64 that was read as an unsigned number."""
    return value - (1 << 64) if value >> 63 else value


def text(data: memoryview, what: str) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise BadPayload(f"{what} has a text that is not UTF-8", HINT) from None


def _varint(data: memoryview, place: int, what: str) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, place
    raise _broken(what)


def _packed(data: memoryview, what: str) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _varint(data, place, what)
        yield value


def _broken(what: str) -> BadPayload:
    return BadPayload(f"{what} cannot be read", "give a file that `fedclient export` wrote")
