"""A join string survives the way by mail and paper, and a damaged one is refused without its secret."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import ConfigError
from shoal.core.identity.join import JoinString, parse

bytes32 = st.binary(min_size=32, max_size=32)
joins = st.builds(
    JoinString,
    st.sampled_from(["10.0.0.7", "shoal.example.org", "[::1]", "localhost"]),
    st.integers(1, 65535),
    bytes32,
    st.text(string.ascii_letters + string.digits + "-_", min_size=8, max_size=32),
    bytes32,
)


@given(joins)
def test_what_is_written_is_read(join: JoinString) -> None:
    assert parse(f"  {join}\n") == join


@given(joins, st.data())
def test_a_line_that_lost_a_piece_is_refused_and_not_repeated(join: JoinString, data: st.DataObject) -> None:
    line = str(join)
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(ConfigError, match="join string") as raised:
        parse(line[:cut])
    assert line.rpartition(":")[2] not in str(raised.value)


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="join string"):
        parse(text)


def test_the_secret_is_not_shown_by_accident() -> None:
    join = JoinString("localhost", 1, bytes(32), "token-01", b"s" * 32)
    assert str(join).rpartition(":")[2] not in repr(join)


def test_a_port_that_is_none_is_refused() -> None:
    line = str(JoinString("localhost", 65535, bytes(32), "token-01", bytes(32)))
    with pytest.raises(ConfigError):
        parse(line.replace("65535", "65536"))
