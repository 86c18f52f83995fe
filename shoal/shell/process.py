"""What a process that serves asks of its system: enough descriptors, and to hear when it has to stop."""

import asyncio
import contextlib
import resource
import signal

MOST_DESCRIPTORS = 1 << 20
"""Open files and connections: more than any server has memory for."""


def allow_descriptors() -> None:
    """Raise the limit of open files and connections as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def stop_signal() -> asyncio.Future[None]:
    """A future that is done at the first SIGTERM or SIGINT. A second signal has its default effect."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def caught() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        with contextlib.suppress(asyncio.InvalidStateError):
            stop.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught)
    return stop
