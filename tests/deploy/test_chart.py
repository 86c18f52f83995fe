"""The Helm chart: it is well-formed and locked up, and a server starts from what it prepares.

Nothing here runs on Kubernetes. The tests need `helm`, on the PATH or as $SHOAL_HELM, and the package
kubernetes-validate has the schemas of Kubernetes; without them they are skipped.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedserver.authority.setup import init
from fedserver.config import SETTINGS, read_server
from tests.buckets import Buckets
from tests.postgresql import Cluster
from tests.server.processes import daemon
from tests.waiting import free_port

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "shoal"
HELM = os.environ.get("SHOAL_HELM") or shutil.which("helm")
VALUES = {
    "image": {"repository": "registry.example.org/shoal-server", "tag": "0.1"},
    "hosts": ["first.example.org", "second.example.org"],
    "database": {"url": "postgresql://shoal@db.example.org/shoal?sslmode=verify-full"},
    "bucket": {"address": "s3://shoal-models/fleet"},
}

OPERATORS = {
    "moreHosts": ["operators.example.org"],
    "operators": {"enabled": True, "from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]},
}

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed")


def helm(tmp_path: Path, verb: str, values: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    name = ["shoal"] if verb == "template" else []
    command = [str(HELM), verb, *name, str(CHART), "--values", str(tmp_path / "values.yaml")]
    environment = {**os.environ, "HELM_CACHE_HOME": str(tmp_path), "HELM_CONFIG_HOME": str(tmp_path)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def rendered(tmp_path: Path, **values: Any) -> list[dict[str, Any]]:
    found = helm(tmp_path, "template", {**VALUES, **values})
    assert found.returncode == 0, found.stderr
    return [each for each in yaml.safe_load_all(found.stdout) if each]


def pod(resources: list[dict[str, Any]]) -> dict[str, Any]:
    (servers,) = (each["spec"]["template"]["spec"] for each in resources if each["kind"] == "StatefulSet")
    return servers


def script(prepare: dict[str, Any], tmp_path: Path) -> str:
    """What an init container runs, with folders of this machine."""
    found = prepare["command"][2].replace("/var/lib/shoal", str(tmp_path / "var"))
    return re.sub(r"(?<![\w-])/run/shoal", str(tmp_path / "run"), found)


def mounted(folder: Path, files: dict[str, bytes]) -> None:
    """A secret, as a pod sees it: readable by its group."""
    folder.mkdir(parents=True)
    for file, data in files.items():
        (folder / file).write_bytes(data)
        (folder / file).chmod(0o440)


def test_the_chart_passes_the_linter_and_says_which_values_are_missing(tmp_path: Path) -> None:
    assert helm(tmp_path, "lint", VALUES).returncode == 0
    bare = helm(tmp_path, "lint", {})
    assert bare.returncode != 0
    for missing in ("/image/repository", "/hosts", "/database/url", "/bucket/address"):
        assert missing in bare.stdout


@pytest.mark.parametrize("url", ["postgresql://shoal:secret@db/shoal", "mysql://shoal@db/shoal"])
def test_a_password_in_the_address_of_the_database_is_refused(tmp_path: Path, url: str) -> None:
    assert helm(tmp_path, "template", {**VALUES, "database": {"url": url}}).returncode != 0


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"page": {"enabled": False}, "networkPolicy": {"enabled": False}, "hosts": ["one.example.org"]},
        {"service": {"type": "ClusterIP"}, "metrics": {"port": 9464, "from": [{"podSelector": {}}]}},
        {"database": {**VALUES["database"], "passwordSecret": ""}, "cadence": {"placements": 20}},
        OPERATORS,
        {**OPERATORS, "service": {"port": 443}, "networkPolicy": {"enabled": False}},
    ],
)
def test_every_resource_fits_the_schemas_of_kubernetes(tmp_path: Path, values: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for resource in rendered(tmp_path, **values):
        validator.validate(resource, "1.30", strict=True)


def test_no_container_has_rights_that_it_does_not_need(tmp_path: Path) -> None:
    found, names = pod(rendered(tmp_path, **OPERATORS)), set()
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["automountServiceAccountToken"] is False
    for each in (*found["initContainers"], *found["containers"]):
        names.add(each["name"])
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in each["resources"]["limits"]
    assert not any("hostPath" in each for each in found["volumes"])
    assert names == {"prepare", "server", "page"}


def test_each_host_has_a_pod_and_a_service_at_layer_4(tmp_path: Path) -> None:
    resources = rendered(tmp_path)
    services = [each for each in resources if each["kind"] == "Service"]
    per_host = [each for each in services if each["spec"].get("type") == "LoadBalancer"]
    selected = [each["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] for each in per_host]
    assert selected == ["shoal-0", "shoal-1"]
    assert not any(each["kind"] == "Ingress" for each in resources)
    (servers,) = (each for each in resources if each["kind"] == "StatefulSet")
    assert servers["spec"]["replicas"] == 2


def test_a_server_starts_from_what_the_chart_prepares(
    tmp_path: Path, postgresql: Cluster, buckets: Buckets
) -> None:
    """The settings and the script of the init container, with folders of this machine."""
    made = tmp_path / "made"
    init(made, ["127.0.0.1"], None, None, "chart")
    bucket = buckets.bucket()
    values = {
        "hosts": ["127.0.0.1"],
        "database": {"url": postgresql.database(), "passwordSecret": "shoal-database"},
        "bucket": {"address": str(bucket)},
    }
    resources = rendered(tmp_path, **values)
    (settings,) = (each["data"][SETTINGS] for each in resources if each["kind"] == "ConfigMap")
    settings = settings.replace("0.0.0.0:50051", f"127.0.0.1:{free_port()}")
    settings = settings.replace("0.0.0.0:50052", f"127.0.0.1:{free_port()}")
    settings = settings.replace("0.0.0.0:9464", f"127.0.0.1:{free_port()}")
    for name, files in {
        "settings": {SETTINGS: settings.encode()},
        "authority": {path.name: path.read_bytes() for path in (made / "authority").iterdir()},
        "database": {"pgpass": b"*:*:*:shoal:secret\n"},
    }.items():
        mounted(tmp_path / "run" / name, files)
    (prepare,) = pod(resources)["initContainers"]
    (tmp_path / "var").mkdir()
    for _ in range(2):  # a pod whose sandbox is made again prepares itself again
        subprocess.run(["sh", "-euc", script(prepare, tmp_path)], check=True)
    state = tmp_path / "var" / "state"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (state / "authority").iterdir()} == {0o400}
    assert stat.S_IMODE((tmp_path / "run" / "keys" / "pgpass").stat().st_mode) == 0o400
    elsewhere = read_server({"state": state}).elsewhere
    assert elsewhere is not None
    assert elsewhere.blobs == bucket
    environment = {"PGPASSFILE": str(tmp_path / "run" / "keys" / "pgpass")}
    with daemon(state, options=(), environment=environment):
        command = [sys.executable, "-m", "fedserver", "token", "create", "--state", str(state), "--json"]
        created = subprocess.run(command, capture_output=True, text=True)
        assert created.returncode == 0, created.stderr
        assert "127.0.0.1" in created.stdout


def test_operators_have_a_port_only_if_it_is_said_who_may_call(tmp_path: Path) -> None:
    resources = rendered(tmp_path)
    assert "operator_listen" not in str(resources)
    assert not any("operators" in each["metadata"]["name"] for each in resources)
    refused = helm(tmp_path, "template", {**VALUES, "operators": {"enabled": True}})
    assert refused.returncode != 0
    assert "/operators/from" in refused.stderr
    resources = rendered(tmp_path, **OPERATORS)
    (settings,) = (
        yaml.safe_load(each["data"][SETTINGS]) for each in resources if each["kind"] == "ConfigMap"
    )
    (listening,) = (each for each in pod(resources)["containers"][0]["ports"] if each["name"] == "operators")
    assert settings["hosts"] == [*VALUES["hosts"], "operators.example.org"]
    assert len(settings["addresses"]) == len(VALUES["hosts"])
    assert settings["operator_listen"] == f"0.0.0.0:{listening['containerPort']}"
    (policy,) = (
        each["spec"]
        for each in resources
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "shoal"
    )
    (rule,) = (
        each for each in policy["ingress"] if {"protocol": "TCP", "port": "operators"} in each["ports"]
    )
    assert rule["from"] == [{"ipBlock": {"cidr": "192.0.2.0/24"}}]
    services = {each["metadata"]["name"]: each["spec"] for each in resources if each["kind"] == "Service"}
    for number in (0, 1):
        found = services[f"shoal-operators-{number}"]
        assert found["type"] == "ClusterIP"
        assert found["selector"] == {"statefulset.kubernetes.io/pod-name": f"shoal-{number}"}
