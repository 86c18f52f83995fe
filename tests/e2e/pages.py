"""What a page of the documentation has people type, and machines on which it is typed.

A block of code in the shell begins with a comment that says where: `# on the server`, `# on this machine`.
What goes on in a shell of its own says so behind that.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import HANG, until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS = "--listen 127.0.0.1:0 --join-listen 127.0.0.1:0"


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page, such as "README.md", in their order."""
    return [block for name, block in BLOCK.findall((ROOT / page).read_text()) if name == language]


def typed_on(page: str, place: str) -> list[str]:
    """What is typed at a place, such as "the server", block by block."""
    first = f"# on {place}\n"
    return [block.removeprefix(first) for block in blocks(page, "bash") if block.startswith(first)]


def at_free_ports(text: str) -> str:
    """`fedserver init` for a server that others on this machine do not disturb."""
    return re.sub(r"(fedserver init) --host \S+", rf"\1 --host 127.0.0.1 {PORTS}", text)


class Machine:
    """A folder in which commands are typed; `server` is the state of the server that they mean.

    programs: those of `tests.typed.commands`.
    """

    def __init__(self, folder: Path, server: Path, programs: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.server = server
        self._programs = programs
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        modules = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.environment = {
            **os.environ,
            "PATH": path,
            "PYTHONPATH": modules,
            "OMP_NUM_THREADS": "1",
            "FEDSERVER_STATE": str(server),
        }

    def types(self, text: str) -> str:
        script = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(
            script, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=HANG
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def reads(self, text: str) -> Any:
        return json.loads(self.types(f"{text} --json"))["data"]

    def runs(self, python: str) -> str:
        """What blocks of Python print."""
        done = subprocess.run(
            [sys.executable, "-c", python],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def serves(self) -> Iterator[None]:
        """`fedserver up`, until it is known where devices call."""
        with (self.folder / "up.log").open("w") as log:
            up = [self._programs / "fedserver", "up"]
            server = subprocess.Popen(up, env=self.environment, stdout=log, stderr=log)
        try:
            asyncio.run(until((self.server / "address").exists))
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(HANG)
