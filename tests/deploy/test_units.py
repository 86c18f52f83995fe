"""The units are well-formed and locked up, and the images are made of what is there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.buckets import Buckets

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))
MOST = 2.0
"""systemd's exposure level of an unlocked service is 9.6; below 2 it rates one as OK."""

systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")


@systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_well_formed(unit: Path, tmp_path: Path) -> None:
    """Program and user need not exist here: they are exchanged for ones that do."""
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(), flags=re.M)
    text = re.sub(r"^(User|Group)=.*", r"\1=root", text, flags=re.M)
    (tmp_path / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", str(tmp_path / unit.name)]
    found = subprocess.run(command, capture_output=True, text=True)
    about_it = [line for line in found.stderr.splitlines() if unit.name in line]
    assert (found.returncode, about_it) == (0, [])


@systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_locked_up(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    level = re.search(r"exposure level for \S+: ([0-9.]+)", found.stdout)
    assert level is not None
    assert float(level[1]) < MOST


def test_the_units_users_are_made() -> None:
    made = set(re.findall(r"^u (\S+)", (DEPLOY / "systemd/shoal.sysusers.conf").read_text(), re.M))
    named = {re.findall(r"^User=(.*)", unit.read_text(), re.M)[0] for unit in UNITS}
    assert named == made


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_made_of_what_is_there_and_runs_as_nobody_in_particular(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    sources = [name for names in copied for name in names if not name.startswith(("--from", "/"))]
    assert sources
    assert [name for name in sources if not (ROOT / name).exists()] == []
    user = re.findall(r"^USER (.*)", text, re.M)[-1]
    assert int(user) > 0, "a number, since Kubernetes refuses to start a name where root is forbidden"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root")
def test_the_root_of_an_image_has_python_and_all_that_it_loads_and_no_shell(tmp_path: Path) -> None:
    environment, root = tmp_path / "environment", tmp_path / "root"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    subprocess.run([DEPLOY / "docker/least-root", environment, root], check=True, capture_output=True)
    files = {path.name for path in root.rglob("*") if path.is_file()}
    assert "libc.so.6" in files
    assert not {"sh", "bash", "pip", "ld"} & files
    asked = "import ctypes, decimal, hashlib, json, lzma, ssl, sys; print(sys.prefix)"
    command = ["/usr/sbin/chroot", root, environment / "bin/python", "-I", "-c", asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(environment), done.stderr


@pytest.mark.parametrize("name", ["compose.yaml", "postgresql.yaml"])
def test_a_compose_file_names_what_is_there(name: str) -> None:
    services = yaml.safe_load((DEPLOY / "docker" / name).read_text())["services"]
    ours = {name: service for name, service in services.items() if "build" in service}
    assert {service["image"] for service in services.values()} - {
        each["image"] for each in ours.values()
    } <= {"postgres:16"}
    for name, service in ours.items():
        build = service["build"]
        assert ((DEPLOY / "docker" / build["context"]) / build["dockerfile"]).is_file(), name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"], json.dumps(service)


def test_the_bucket_of_the_compose_file_is_added_to_the_servers_that_there_are() -> None:
    files = [
        yaml.safe_load((DEPLOY / "docker" / name).read_text()) for name in ("postgresql.yaml", "bucket.yaml")
    ]
    below, above = (each["services"] for each in files)
    servers = {name for name, service in below.items() if "build" in service}
    assert set(above) == {"storage", *servers}
    for name in servers:
        assert "AWS_SECRET_ACCESS_KEY" in above[name]["environment"]


def test_the_life_cycle_rules_are_such_as_a_bucket_takes(buckets: Buckets) -> None:
    rules = json.loads((DEPLOY / "s3" / "lifecycle.json").read_text())
    bucket = buckets.bucket().bucket
    buckets.client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    found = buckets.client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert [each["ID"] for each in found] == [each["ID"] for each in rules["Rules"]]
    assert not any("Expiration" in each for each in found)  # a model is needed as long as its run is stored
