"""The version before this one: a commit, installed in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.programs import Verb

ROOT = Path(__file__).parents[2]
COMMIT = "cd6fed32ac9f1781cfb8cca54fa2120bdd87f00b"
"""What this version has to work with. It moves when a version is released, to that version."""


def lacking() -> str:
    """Why the reference cannot be made here; "" if it can."""
    try:
        found = subprocess.run(
            ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
        )
    except FileNotFoundError:
        return "git is not installed"
    return f"this clone lacks commit {COMMIT[:8]}: git fetch --unshallow" if found.returncode else ""


def install(folder: Path) -> dict[str, str]:
    """Build the wheel of the reference and install it in `folder`, beside the tests of that commit.

    Returns the variables with which a process imports it. Its dependencies are those of this environment.
    """
    sources, packages = folder / "sources", folder / "packages"
    sources.mkdir()
    archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", sources], input=archive.stdout, check=True)
    alone = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    _run("-m", "pip", "wheel", *alone, "--wheel-dir", folder, sources)
    (wheel,) = folder.glob("shoal_fed-*.whl")
    _run("-m", "pip", "install", *alone[:1], *alone[2:], "--no-compile", "--target", packages, wheel)
    (sources / "tests").rename(packages / "tests")
    variables = {"PYTHONPATH": str(packages), "PYTHONSAFEPATH": "1"}  # and not what is in the current folder
    # Started as the tests start programs: one that was forked would be of this version.
    (packages / "where.py").write_text(
        "import fedserver, fedclient\nprint(fedserver.__file__, fedclient.__file__)"
    )
    found = Verb(["where"], folder, {**os.environ, **variables}).end()
    assert [Path(path).is_relative_to(packages) for path in found.stdout.split()] == [True, True], found
    return variables


def _run(*arguments: object, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
