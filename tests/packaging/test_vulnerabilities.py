"""What is said of known vulnerabilities, and what CI makes of it: all is well only if all was asked about."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(each.name for each in (ROOT / "requirements").glob("*.lock"))
FAKE = """#!{python}
import json, pathlib, sys
lock = pathlib.Path(sys.argv[sys.argv.index("-r") + 1])
assert "--require-hashes" in sys.argv and lock.is_file()
answers = json.loads(pathlib.Path(__file__).with_name("answers.json").read_text())
text, code = answers.get(lock.name, answers["*"])
print("asked: " + lock.name, file=sys.stderr)
print(text)
sys.exit(code)
"""
"""A pip-audit that gives the answers that lie beside it."""


def text(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


WELL = {"name": "click", "version": "8.1", "vulns": []}
HOLED = {
    "name": "grpcio",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["1.1"], "aliases": [], "description": "..."}],
}
SKIPPED = {"name": "numpy", "skip_reason": "Dependency could not be audited: numpy (2.0)"}
CLEAN = (text(WELL), 0)


OTHERS = """#!/bin/sh
echo "$0 was asked: $*"
exit {code}
"""


def asked(
    folder: Path, answers: dict[str, Any] | None, script: str, others: int = 0, **more: str
) -> tuple[int, str]:
    """The exit code of a script, and what it prints, where pip-audit gives these answers, by lock file.

    None: it is not installed, and nothing else but Python is. others: how the other programs of CI end.
    """
    if answers is None:
        (folder / "python3").symlink_to(sys.executable)
    else:
        (folder / "answers.json").write_text(json.dumps({"*": CLEAN, **answers}))
        (folder / "pip-audit").write_text(FAKE.format(python=sys.executable))
        for name in ("reuse", "zizmor"):
            (folder / name).write_text(OTHERS.format(code=others))
        for name in ("pip-audit", "reuse", "zizmor"):
            (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}" if answers is not None else str(folder)
    environment = {**os.environ, "PATH": path, "SHOAL_OFFLINE": "", **more}
    done = subprocess.run([ROOT / script], capture_output=True, text=True, env=environment)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


SCRIPT, IN_CI = "scripts/vulnerabilities", ".ci/audit"


@pytest.mark.parametrize("script", [SCRIPT, IN_CI])
def test_all_is_well_only_if_every_package_was_asked_about(tmp_path: Path, script: str) -> None:
    code, said = asked(tmp_path, {}, script)
    assert code == 0
    lines = [f"{lock}: no vulnerability is known in 1 packages" for lock in LOCKS]
    assert [line for line in said.splitlines() if "finds nothing" not in line] == lines
    assert said.count("finds nothing") == (2 if script == IN_CI else 0)


@pytest.mark.parametrize("script", [SCRIPT, IN_CI])
def test_a_known_vulnerability_is_named_and_fails(tmp_path: Path, script: str) -> None:
    """Also where other packages were skipped, and where one knows that there is no network."""
    answers = {"server.lock": (text(WELL, HOLED), 1), "infer.lock": (text(SKIPPED), 0)}
    for offline in ("", "1"):
        code, said = asked(tmp_path, answers, script, SHOAL_OFFLINE=offline)
        assert code == 1
        assert "KNOWN: server.lock: grpcio 1.0: PYSEC-2026-1, fixed in 1.1" in said.splitlines()
        assert "server.lock: no vulnerability is known" not in said
        assert "NOT CHECKED" in said


NOTHING = {
    "one package is skipped": (text(WELL, SKIPPED), 0),
    "all are": (text(SKIPPED), 0),
    "it knows of no package": (text(), 0),
    "it says nothing": ("", 1),
    "it says something else": ("no connection", 0),
    "it says something like it": ('["dependencies"]', 0),
}


@pytest.mark.parametrize("what", NOTHING)
def test_what_was_not_checked_is_said_and_fails(tmp_path: Path, what: str) -> None:
    code, said = asked(tmp_path, {"client.lock": NOTHING[what]}, SCRIPT)
    assert code == 2
    assert said.splitlines()[-1].startswith("NOT CHECKED for known vulnerabilities: client.lock: ")
    assert "client.lock: no vulnerability is known" not in said
    assert "server.lock: no vulnerability is known in 1 packages" in said, "the others were asked about"
    if what == "one package is skipped":
        assert "1 of 2 packages were skipped, the first since: Dependency could not be audited: numpy" in said


def test_without_pip_audit_nothing_was_checked(tmp_path: Path) -> None:
    code, said = asked(tmp_path, None, SCRIPT)
    assert code == 2
    assert said.startswith("NOT CHECKED for known vulnerabilities: pip-audit is not installed")


def test_ci_passes_without_a_check_only_if_it_is_told_so_and_its_last_line_says_it(tmp_path: Path) -> None:
    answers = {"*": (text(SKIPPED), 0)}
    code, said = asked(tmp_path, answers, IN_CI)
    assert code == 2
    assert "SHOAL_OFFLINE=1" in said.splitlines()[-1]
    code, said = asked(tmp_path, answers, IN_CI, SHOAL_OFFLINE="1")
    assert code == 0
    assert said.splitlines()[-1] == "NOT CHECKED: known vulnerabilities (SHOAL_OFFLINE=1)"
    run = (ROOT / ".ci/run").read_text().rstrip().splitlines()
    assert run[-1] == IN_CI, "so that this is the last line of a run, too"
    assert "SHOAL_OFFLINE" not in (ROOT / ".github/workflows/ci.yml").read_text()


@pytest.mark.parametrize("offline", ["", "1"])
def test_what_another_program_finds_fails_and_is_shown(tmp_path: Path, offline: str) -> None:
    code, said = asked(tmp_path, {}, IN_CI, others=1, SHOAL_OFFLINE=offline)
    assert code == 1
    assert "reuse was asked: lint" in said
    assert "zizmor was asked: --offline" in said


def test_the_workflow_asks_every_week_and_runs_only_what_has_a_hash() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    jobs = yaml.safe_load(workflow)
    assert [each["cron"] for each in jobs[True]["schedule"]], "YAML 1.1 reads the key `on` as true"
    audit = jobs["jobs"]["audit"]
    assert "if" not in audit
    assert audit["steps"][-1] == {"run": IN_CI}
    used = re.findall(r"uses: (.*)", workflow)
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[0-9.]+", each)] == []
