"""Metrics of a real server, as Prometheus reads them; the dashboard and the alert rules ask for no others."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fedserver.config import read_server
from fedserver.telemetry.metrics import AT_ONCE, Scrape, metrics
from shoal.core.errors import ConfigError
from shoal.core.exchange.link import Failure, Report
from tests.server.servers import DEVICES, hands, serve_all, server, start
from tests.waiting import HANG

MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"
NAME = re.compile(r"\bshoal_[a-z_]+")


def scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=HANG) as answer:
        return str(answer.read().decode())


def values(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What a server shows while a run waits, and after it."""

    async def play() -> tuple[str, str]:
        async with server(tmp_path_factory.mktemp("metrics")) as coordinator:
            with metrics(coordinator, "127.0.0.1:0", lambda: {"calls": 7}) as address:
                await start(coordinator)
                devices = [await hands(coordinator, number) for number in range(DEVICES)]
                for device in devices:
                    await device.link.next_task(0.0)
                task = await devices[0].task()
                failure = Failure("broken", "no data")
                await devices[0].link.report(Report(task.run, task.round, task.attempt, failure))
                before = await asyncio.to_thread(scraped, address)
                await serve_all(coordinator)
                return before, await asyncio.to_thread(scraped, address)

    return asyncio.run(play())


def test_a_scrape_shows_runs_devices_rounds_and_bytes(exposed: tuple[str, str]) -> None:
    before, after = map(values, exposed)
    assert before["shoal_runs", ("open",)] == 1.0
    assert before["shoal_reports_total", ("failed",)] == 1.0
    assert before["shoal_run_progress", ("fedavg", "toy")] == 0.0
    assert before["shoal_run_rounds", ("fedavg", "toy")] == 3.0
    assert before["shoal_run_waiting_devices", ("fedavg", "toy")] == 2.0
    assert before["shoal_places_left", ("calls",)] == 7.0
    assert before["shoal_disk_free_bytes", ()] > before["shoal_disk_needed_bytes", ()] > 0.0
    assert sum(before["shoal_devices", (state,)] for state in ("absent", "idle", "working")) == DEVICES
    assert after["shoal_runs", ("finished",)] == 1.0
    assert ("shoal_run_progress", ("fedavg", "toy")) not in after
    assert after["shoal_rounds_total", ("done",)] >= 4.0
    assert after["shoal_reports_total", ("accepted",)] >= 4 * DEVICES - 1
    assert after["shoal_bytes_total", ("up",)] > 0.0
    assert {phase for name, (phase, *_) in _with_labels(after) if name == "shoal_round_seconds_total"} == {
        "checkpoint",
        "combine",
        "devices",
        "plan",
        "save",
    }


def test_silent_connections_have_few_places_and_foreign_hosts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scrape, "timeout", 0.5)

    def attack(address: str) -> None:
        host, port = address.rsplit(":", 1)
        before = threading.active_count()
        silent = [socket.create_connection((host, int(port)), HANG) for _ in range(10 * AT_ONCE)]
        try:
            assert sum(not each.recv(1) for each in silent) == len(silent), "each is closed in time"
            assert threading.active_count() <= before + AT_ONCE
        finally:
            for each in silent:
                each.close()
        foreign = urllib.request.Request(f"http://{address}/metrics", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(foreign, timeout=HANG)
        assert refused.value.code == 421
        assert "shoal_devices" in scraped(address)

    async def play() -> None:
        async with server(tmp_path) as coordinator:
            with metrics(coordinator, "127.0.0.1:0", dict) as address:
                await asyncio.to_thread(attack, address)

    asyncio.run(play())


def _with_labels(found: dict[tuple[str, tuple[str, ...]], float]) -> list[tuple[str, tuple[str, ...]]]:
    return [(name, labels) for name, labels in found if labels]


def test_the_dashboard_and_the_rules_ask_for_metrics_that_there_are(exposed: tuple[str, str]) -> None:
    families = {name for text in exposed for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    dashboard = json.loads((MONITORING / "shoal-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((MONITORING / "shoal-rules.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    asked += [rule["expr"] for rule in alerts]
    assert {name for text in asked for name in NAME.findall(text)} <= families
    assert all({"summary", "action"} == set(rule["annotations"]) for rule in alerts)
    # Every metric is on the dashboard, but for the version.
    shown = {
        name for panel in dashboard["panels"] for t in panel["targets"] for name in NAME.findall(t["expr"])
    }
    assert {name for name in families if name.startswith("shoal_")} - shown == {"shoal_info"}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (apt install prometheus)")
def test_promtool_has_no_complaint(exposed: tuple[str, str]) -> None:
    for arguments, given in (
        (("check", "rules", str(MONITORING / "shoal-rules.yml")), ""),
        (("check", "config", str(MONITORING / "prometheus.yml")), ""),
        (("check", "metrics"), exposed[1]),
    ):
        ended = subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_an_address_that_cannot_work_is_refused(tmp_path: Path) -> None:
    assert read_server({"state": tmp_path}).metrics == ""

    async def play() -> None:
        async with server(tmp_path) as coordinator:
            with metrics(coordinator, "", dict) as address:
                assert address == ""
            for wrong in ("9464", "127.0.0.1:x", "127.0.0.1:99999"):
                with (
                    pytest.raises(ConfigError, match=r"is not (HOST:PORT|a port)"),
                    metrics(coordinator, wrong, dict),
                ):
                    pass
            with (
                metrics(coordinator, "127.0.0.1:0", dict) as taken,
                pytest.raises(ConfigError, match="cannot be served"),
                metrics(coordinator, taken, dict),
            ):
                pass

    asyncio.run(play())
