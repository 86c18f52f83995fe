"""The log of the agent in the device's folder: what it did, for `fedclient logs`. It never leaves the device.

Two files of bounded size: the present one, and the one before it.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from shoal.shell.console import continued

NAME, LARGEST = "agent.log", 1 << 20
"""The file, and how many bytes it has when another one is begun."""
LINE = 8192
"""How many characters of a text are logged."""


class AgentLog:
    """The log in the folder `root`. A disk that takes no more must not stop the work: then lines are lost."""

    def __init__(self, root: Path) -> None:
        self.path, self.former = root / NAME, root / f"{NAME}.1"
        self._last = ""

    def add(self, text: str) -> None:
        """Add a text with the present time, unless it is the one that was added last."""
        if text == self._last:
            return
        self._last = text
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {continued(text[:LINE])}\n".encode(errors="replace")
        with suppress(OSError):
            with open(self.path, "ab", opener=_private) as file:
                size = file.tell()
                file.write(line)
            if size + len(line) >= LARGEST:
                self.path.replace(self.former)

    def noting(self, show: Callable[[str], None]) -> Callable[[str], None]:
        """A function that adds a text, and then shows it."""

        def both(text: str) -> None:
            self.add(text)
            show(text)

        return both

    def last(self, lines: int) -> list[str]:
        """The last lines, the newest at the end; none if there is no log."""
        found = deque[str](maxlen=lines)
        for path in (self.former, self.path):
            with suppress(OSError), path.open(errors="replace") as file:
                found.extend(line.rstrip("\n") for line in file)
        return list(found)

    def follow(self, wait: Callable[[], None]) -> Iterator[str]:
        """The lines that are added from now on. It never ends. wait: called whenever there is no new line."""
        file, unfinished = None, ""
        with suppress(OSError):
            file = self.path.open(errors="replace")
            file.seek(0, os.SEEK_END)
        try:
            while True:
                for line in file or ():
                    unfinished += line
                    if unfinished.endswith("\n"):
                        yield unfinished.rstrip("\n")
                        unfinished = ""
                if file is None or self._is_another(file.fileno()):
                    with suppress(OSError):
                        following = self.path.open(errors="replace")
                        if file is not None:
                            yield from (line.rstrip("\n") for line in file)  # written before it was renamed
                            file.close()
                        file = following
                        continue
                wait()
        finally:
            if file is not None:
                file.close()

    def _is_another(self, descriptor: int) -> bool:
        """Whether the log is another file than the one that is open."""
        try:
            return not os.path.samestat(os.fstat(descriptor), self.path.stat())
        except OSError:  # it was renamed, and the next one has not been begun
            return False


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
