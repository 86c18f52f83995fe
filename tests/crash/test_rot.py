"""A short campaign of flipped bits; `make rot` plays a long one."""

import pytest

from tests.crash.rot import campaign, table

FLIPS = 27
"""One of each kind, and then some."""


@pytest.mark.timeout(300)
def test_no_flipped_bit_is_silent_or_loses_a_run_or_keeps_the_server_from_starting() -> None:
    said: list[str] = []
    found = campaign(FLIPS, 4000, said.append)
    print(table(found))
    assert not said
    assert len(found) == FLIPS
    assert sum(bool(seen.noticed) for seen in found) >= FLIPS // 4
