"""What tests of more than one machine need."""

from collections.abc import Iterator

import pytest

from tests.buckets import Buckets


@pytest.fixture
def unsteady(buckets: Buckets) -> Iterator[Buckets]:
    """The server of the buckets, which the test may stop."""
    yield buckets
    if not buckets.is_running:
        buckets.start()
