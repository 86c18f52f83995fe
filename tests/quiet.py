"""The product's log is left out while many trials run in this process, and is as it was afterwards."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    log = logging.getLogger("shoal")
    former = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(former)
