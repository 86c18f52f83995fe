"""What a device starts, killed between every two steps of an update: real processes, from real wheels.

Their agent and their check are toys, so that a start takes a moment; who starts them is the real one.
"""

import io
import json
import os
import signal
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

import shoal
from fedclient.software.standing import STARTS, Standing
from shoal.shell import crash
from tests.releases import MINOR, PATCH, Maker, wheel

AGENT = "    from fedclient.agent.agent import Until\n"
TOY = """    from fedclient.software import updates_of
    from shoal import __version__

    if not once:
        asyncio.run(updates_of(settings, console.say).between())
    return Result({"tasks": 1, "version": __version__}, "")
"""
"""An agent whose first result is accepted at once, and that stops after that."""
CHECK = "    from fedclient.agent.service import check\n"
TOYS = {
    "fedclient/cli/run.py": (AGENT, TOY),
    "fedclient/cli/check.py": (CHECK, '    return Result({}, "")\n'),
}
FAILS = {**TOYS, "fedclient/cli/check.py": (CHECK, "    raise SystemExit(9)\n")}
FAILS_LATER = {**TOYS, "fedclient/cli/run.py": (AGENT, "    raise SystemExit(0 if once else 9)\n")}


IMPATIENT = {
    **TOYS,
    "fedclient/cli/run.py": (
        AGENT,
        f"    if once and (give_up_after or 60.0) < 3600.0:\n        exit(4)\n{TOY}",
    ),
}
"""As if the server did not answer for just under an hour, from the beginning of the trial on."""


@dataclass
class Device:
    """package: where the installed one is."""

    root: Path
    package: Path
    maker: Maker

    def run(self, *more: str, at: str = "") -> subprocess.CompletedProcess[str]:
        """`fedclient run` of the package, which may be killed at a point."""
        path = os.pathsep.join([str(self.package), sysconfig.get_path("purelib")])
        line = [
            sys.executable,
            "-P",
            "-m",
            "fedclient",
            "run",
            "-c",
            str(self.root / "device.yaml"),
            "--json",
        ]
        environment = {**os.environ, "PYTHONPATH": path, crash.VARIABLE: at}
        return subprocess.run(
            [*line, *more], env=environment, cwd=self.root, capture_output=True, text=True, check=False
        )

    def version(self, *more: str) -> str:
        """Which one has run to its end."""
        done = self.run(*more)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["data"]["version"])

    @property
    def standing(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "state/software/standing.json").read_text())
        return found


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    with zipfile.ZipFile(io.BytesIO(wheel(shoal.__version__, TOYS))) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def device(package: Path, tmp_path: Path) -> Device:
    """The package, and a maker of releases, both with toys."""
    maker = Maker(tmp_path / "releases")
    (tmp_path / "device.yaml").write_text("learner: {builtin: lenet5}\n" + maker.setting)
    return Device(tmp_path, package, maker)


def test_a_kill_between_every_two_steps_ends_in_the_new_release(device: Device) -> None:
    device.maker.publish(PATCH, TOYS)
    steps = ("wheel-kept", "release-arrived", "trial-due", "trial-begun", "release-unpacked", "trial-judged")
    for step in (*steps, "release-started", "release-settled"):
        assert device.run(at=f"device.{step}").returncode == -signal.SIGKILL, step
    assert device.version() == PATCH
    assert device.standing == asdict(Standing(PATCH))
    kept = {path.name for path in (device.root / "state/software").iterdir()}
    assert kept == {
        "standing.json",
        "lock",
        PATCH,
        f"shoal-{PATCH}.release",
        f"shoal_fed-{PATCH}-py3-none-any.whl",
    }

    (content,) = (device.root / "state/software").glob("*.whl")
    content.write_bytes(content.read_bytes()[:-9])
    assert device.version("--once") == shoal.__version__, "a damaged one is not started"
    assert device.version() == PATCH, "and is fetched again"
    (device.root / "device.yaml").write_text("learner: {builtin: lenet5}\n")
    assert device.version("--once") == shoal.__version__, "without the setting the package runs"


def test_a_release_that_fails_is_tried_three_times_and_never_again(device: Device) -> None:
    device.maker.publish(MINOR, FAILS)
    device.maker.publish(PATCH, TOYS)
    done = device.run()
    assert json.loads(done.stdout)["data"]["version"] == PATCH
    assert done.stderr.count(f"version {MINOR} is tried\n") == STARTS
    assert device.standing["failed"] == {MINOR: "`fedclient check` ended with exit code 9"}
    assert device.version() == PATCH


def test_a_server_that_is_away_for_a_while_fails_no_release(device: Device) -> None:
    device.maker.publish(PATCH, IMPATIENT)
    assert device.version() == PATCH
    assert device.standing["failed"] == {}


def test_an_adopted_release_that_never_settles_is_left(device: Device) -> None:
    device.maker.publish(PATCH, FAILS_LATER)
    for _ in range(STARTS):
        assert device.run().returncode == 9
    assert device.run(at="device.release-left").returncode == -signal.SIGKILL
    assert device.version() == shoal.__version__
    assert device.standing["failed"].keys() == {PATCH}
