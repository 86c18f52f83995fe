"""python -m tests.mutants [NAME ...]: see the package's docstring."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.listed import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("shoal", "fedserver", "fedclient", "tests", "pyproject.toml", "proto", "docs", "scripts")
EACH, LONGEST = 300, 600.0
"""Seconds after which one test, and all tests, of a mutant are ended: then it makes the product hang."""


@dataclass(frozen=True)
class Verdict:
    """by: the test that has failed and why, "" if none has."""

    mutant: Mutant
    by: str
    seconds: float

    @property
    def killed(self) -> bool:
        return bool(self.by)


def tried(mutant: Mutant) -> Verdict:
    """Apply a mutant to a copy of the packages, and run its tests there."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-mutant-") as folder:
        tree = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, tree / name)
        path = tree / mutant.path
        path.write_text(path.read_text().replace(mutant.old, mutant.new, 1))
        line = [
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n",
            "0",
            "--timeout",
            str(EACH),
            "-p",
            "no:cacheprovider",
            *mutant.tests,
        ]
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["COLUMNS"] = "300"  # so that the reason stands beside the name of a test
        environment |= {"GIT_DIR": repository} if (repository := _repository()) else {}
        try:
            ran = subprocess.run(
                [sys.executable, *line],
                cwd=tree,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Verdict(mutant, "its tests did not end", time.monotonic() - began)
    failed = [each for each in ran.stdout.splitlines() if each.startswith(("FAILED tests", "ERROR tests"))]
    by = failed[0].partition(" ")[2] if failed else "" if ran.returncode == 0 else "no test ran"
    if by == "no test ran":
        raise SystemExit(
            f"{mutant.name}: the tests could not be run:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
        )
    return Verdict(mutant, by, time.monotonic() - began)


def _repository() -> str:
    """Where git keeps this repository, of which some tests read a commit; "" if there is none."""
    if shutil.which("git") is None:
        return ""
    command = ["git", "rev-parse", "--absolute-git-dir"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Break the product on purpose."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="part of the names of those to try  [default: all]"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time  [default: 2]")
    parser.add_argument("--list", action="store_true", help="name the mutants and end")
    arguments = parser.parse_args()
    chosen = [
        each for each in MUTANTS if not arguments.names or any(name in each.name for name in arguments.names)
    ]
    if arguments.list:
        print("\n".join(f"{each.path:40} {each.name}" for each in chosen))
        return 0
    began, verdicts = time.monotonic(), []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for verdict in pool.map(tried, chosen):
            verdicts.append(verdict)
            state = f"killed by {verdict.by}" if verdict.killed else "SURVIVED"
            print(f"{verdict.seconds:6.1f} s  {verdict.mutant.name}: {state}", flush=True)
    killed = sum(verdict.killed for verdict in verdicts)
    print(
        f"{len(verdicts)} mutants, {killed} killed, {len(verdicts) - killed} survived; "
        f"{time.monotonic() - began:.0f} s"
    )
    return 0 if killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
