"""What servers and devices install: every package has hashes and the version that is tested here."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.M)
EXTRAS = {
    "server": ("server", "page", "metrics", "otel", "postgres", "s3"),
    "page": ("page",),
    "client": ("client", "dp"),
    "infer": ("infer",),
}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: str) -> dict[str, str]:
    return {plain(name): version for name, version in PINNED.findall((ROOT / path).read_text())}


def needed(names: list[str]) -> set[str]:
    """These packages and all that they need on this machine."""
    found: set[str] = set()
    while names:
        written = names.pop()
        name = plain(re.split(r"[^A-Za-z0-9._-]", written)[0])
        applies = "extra ==" not in written and not re.search(r"; *(python|sys_|platform|os_|impl)", written)
        if name not in found and applies:
            found.add(name)
            names += metadata.requires(name) or []
    return found


@pytest.mark.parametrize("kind", EXTRAS)
def test_a_lock_has_all_that_is_needed_in_the_versions_that_are_tested(kind: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in EXTRAS[kind]:
        wanted += project["optional-dependencies"][extra]
    lock, tested = pinned(f"requirements/{kind}.lock"), pinned("requirements.lock")
    assert needed(wanted) - lock.keys() == set()
    assert {name: lock[name] for name in lock.keys() & tested.keys() if lock[name] != tested[name]} == {}


@pytest.mark.parametrize("kind", [*EXTRAS, "build", "audit"])
def test_every_package_of_a_lock_has_hashes(kind: str) -> None:
    text = (ROOT / f"requirements/{kind}.lock").read_text()
    packages = re.split(r"^(?=[A-Za-z0-9._-]+==)", text, flags=re.M)[1:]
    assert packages
    assert [each.splitlines()[0] for each in packages if "--hash=sha256:" not in each] == []
    assert (kind == "client") == any(each.startswith("torch==") for each in packages)


def test_the_bill_of_materials_has_what_the_locks_have(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts/sbom", tmp_path], check=True, capture_output=True)
    for kind in EXTRAS:
        bill = json.loads((tmp_path / f"{kind}.cdx.json").read_text())
        assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
        listed = {plain(each["name"]): each["version"] for each in bill["components"]}
        assert listed == pinned(f"requirements/{kind}.lock")
        assert all(each["purl"].startswith("pkg:pypi/") and each["hashes"] for each in bill["components"])
