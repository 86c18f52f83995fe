"""README's five minutes, typed twice in a row, and then a run with other settings: no device is refused for
want of budget, and its ledger has paid once. Real processes, over mutual TLS."""

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

README = (Path(__file__).parents[2] / "README.md").read_text()
ELSEWHERE = ("pip ", "python3 -m venv", "fedserver up")
"""Commands of the section that install something, or that run beside the others."""
PORTS = "--listen 127.0.0.1:0 --join-listen 127.0.0.1:0"


def five_minutes() -> tuple[list[str], list[str], list[str]]:
    """What is typed on the server, on the device that trains, and for the newcomer, as README has it."""
    section = README.split("## Five minutes")[1].split("\n## ")[0]
    blocks = [re.sub(r"(?m)^    ", "", block) for block in re.findall(r"(?:^(?:    .*)?\n)+", section, re.M)]
    found = [re.sub(r"(?m)\s{2,}#.*$", "", block).strip() for block in blocks if block.strip()]
    typed = [block for block in found if not block.startswith(ELSEWHERE)]
    server = [block for block in typed if "fedserver" in block and "infer-only" not in block]
    newcomer = [block for block in typed if "--state cellar" in block or "infer-only" in block]
    device = [block for block in typed if block not in server and block not in newcomer]
    return server, device, newcomer


class Machine:
    """A folder in which commands are typed; the server that they mean is `server` beside it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": programs, "FEDSERVER_STATE": str(folder.parent / "server")}

    def types(self, text: str) -> str:
        script = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(
            script, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=HANG
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def reads(self, text: str) -> Any:
        return json.loads(self.types(f"{text} --json"))["data"]

    @contextmanager
    def serves(self) -> Iterator[None]:
        """`fedserver up`, until it is known where devices call."""
        with (self.folder / "up.log").open("w") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "fedserver", "up"], env=self.environment, stdout=log, stderr=log
            )
        try:
            asyncio.run(until((self.folder.parent / "server" / "address").exists))
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(HANG)


def joined(text: str, role: str = "") -> str:
    """The same commands, with the join string piped to the one that reads it."""
    return text.replace("fedclient join -", f"fedserver token create {role} | fedclient join -")


def test_a_fleet_runs_again_and_again_on_what_it_paid_once(tmp_path: Path) -> None:
    (init, start), (device,), (newcomer,) = five_minutes()
    server, attic = Machine(tmp_path / "the-server"), Machine(tmp_path / "attic")
    server.types(init.replace("the-server", f"127.0.0.1 {PORTS}").removesuffix("fedserver up"))
    with server.serves():
        assert "each device pays epsilon 5 for a description of its data" in server.types(start)
        attic.types(joined(re.sub(r"(?m)^pip .*$", "", device)))
        once, again = device.splitlines()[-1], start.splitlines()[1]
        assert once.startswith("fedclient run ")
        assert again.startswith("fedserver run start digits ")
        models = [server.reads("fedserver run show digits")["models"]]
        for name, settings in (("second", ""), ("third", "--set rounds=12 --set learning_rate=0.1")):
            printed = server.types(f"{again.replace('digits', name)} {settings}")
            assert (
                "1 of 1 devices have described their data in an earlier run, which is not paid again"
                in printed
            )
            attic.types(once)
            found = server.reads(f"fedserver run show {name}")
            assert found["stage"] == "finished"
            models.append(found["models"])
            ledger = attic.reads("fedclient ledger --config device.yaml")
            paid = [each for each in ledger["entries"] if "encoder" in each]
            assert [(each["run"], each["epsilon"]) for each in paid] == [("digits", 5.0)]
            assert ledger["runs"].keys() == {"digits"}, "nothing is spent or reserved for the others"
        assert models[0] == models[1] != models[2], "the same settings give the same model, to the bit"
        attic.types("cp mine.npz new.npz")
        attic.types(joined(newcomer.split("\n\n")[1], "--role infer-only"))
        assert (attic.folder / "classes.csv").exists()
