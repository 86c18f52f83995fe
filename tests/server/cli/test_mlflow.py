"""`fedserver model export --mlflow`: what is no server of MLflow gets a clear answer. A real one is tried by
`python -m benchmarks.mlflow_export`."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedserver.cli.models.mlflow import _Server
from shoal.core.errors import ConfigError, Refused, Unavailable
from tests.waiting import free_port


@pytest.mark.parametrize("url", ["mlruns", "file:///etc", "ftp://127.0.0.1"])
def test_only_web_addresses_are_servers(url: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        _Server(url)


def test_where_nothing_answers_it_is_said() -> None:
    with pytest.raises(Unavailable, match="no MLflow answers"):
        _Server(f"http://127.0.0.1:{free_port()}").experiment()


def test_another_web_server_is_not_taken_for_mlflow(tmp_path: Path) -> None:
    page = tmp_path / "api/2.0/mlflow/experiments/get-by-name"
    page.parent.mkdir(parents=True)
    page.write_text("<html>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        server = _Server(f"http://127.0.0.1:{web.server_address[1]}")
        with pytest.raises(Unavailable, match="no server of MLflow"):
            server.experiment()
        page.unlink()
        with pytest.raises(Refused, match="501"):
            server.experiment()
        web.shutdown()


def test_a_server_that_keeps_files_elsewhere_is_refused() -> None:
    with pytest.raises(Refused) as fault:
        _Server("http://127.0.0.1:1").put("/data/mlruns/1/artifacts", "MLmodel", b"")
    assert "--serve-artifacts" in fault.value.hint
