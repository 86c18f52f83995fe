"""Who gets what from the page's process, which runs here as it does for operators."""

import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedserver.page import files
from fedserver.page.files import STATIC
from tests.server.page.pages import Answer, Page, page, path_of
from tests.waiting import HANG, free_port

pytest.importorskip("uvicorn", reason="the page needs starlette and uvicorn")
KEPT = "public, max-age=31536000, immutable"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    state = tmp_path_factory.mktemp("page") / "state"
    state.mkdir()
    with page(state) as found:
        yield found


def test_without_a_session_there_is_only_the_way_to_a_link(served: Page) -> None:
    for path in ("/", "/events", "/events?run=x", "/anything"):
        answer = served.get(path)
        assert answer.status == 401
        assert b"fedserver page --link" in answer.body
    assert served.get("/", cookie="shoal-page=1; other=2").status == 401


def test_a_link_works_once_and_gives_a_cookie_that_no_script_and_no_other_site_gets(served: Page) -> None:
    path = path_of(served.new_link())
    preview = served.get(path, method="HEAD")
    assert (preview.status, "set-cookie" in preview.headers) == (200, False)
    answer = served.get(path)
    assert answer.status == 200
    cookie = answer.headers["set-cookie"].lower()
    for attribute in ("httponly", "samesite=strict", "path=/", "max-age="):
        assert attribute in cookie
    assert served.get(path).status == 401
    assert served.get("/", cookie=answer.headers["set-cookie"].partition(";")[0]).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil", "", "10.0.0.1"]
)
def test_a_foreign_host_name_is_refused_even_with_a_session(served: Page, host: str) -> None:
    assert served.get("/", cookie=served.cookie(), host=host).status in (400, 421)


def test_any_port_is_good_so_that_a_forwarded_one_is(served: Page) -> None:
    assert served.get("/", cookie=served.cookie(), host="localhost:1234").status == 200


def test_another_website_gets_nothing_with_the_operators_cookie(served: Page) -> None:
    cookie = served.cookie()
    for site in ("cross-site", "same-site"):
        for mode in ("no-cors", "cors", "navigate"):
            answer = served.get("/events", cookie=cookie, sec_fetch_site=site, sec_fetch_mode=mode)
            assert answer.status == 403
    assert served.get("/", cookie=cookie, sec_fetch_site="same-origin").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_only_reads(served: Page, method: str) -> None:
    assert served.get("/", method=method, cookie=served.cookie()).status == 405


def test_every_answer_forbids_what_the_page_does_not_need(served: Page) -> None:
    cookie = served.cookie()
    index = served.get("/", cookie=cookie)
    without = {path: served.get(path) for path in ("/", "/static/js/main.js", script_of(index))}
    kept = ["no-store", "no-store", "no-store", KEPT]
    for answer, caching in zip([index, *without.values()], kept, strict=True):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == caching


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/js/%00",
    ],
)
def test_files_come_from_one_folder_only(served: Page, path: str) -> None:
    root = script_of(served.get("/", cookie=served.cookie())).removesuffix("js/main.js")
    for where in (path, root + path.removeprefix("/static/")):
        assert served.get(where, cookie=served.cookie()).status in (400, 401, 404, 500)
        assert b"application" not in served.get(where).body


def test_the_pages_own_files_are_all_there_and_ask_for_nothing_elsewhere(served: Page) -> None:
    seen: set[str] = set()
    wanted = ["/"]
    cookie = served.cookie()
    while wanted:
        path = wanted.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = served.get(path, cookie=cookie)
        assert answer.status == 200, path
        text = answer.body.decode()
        assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org)[a-z0-9.-]+\.[a-z]{2,}", text), path
        wanted += re.findall(r'(?:href|src)="(/static/[^"]+)"', text)
        for link in re.findall(r'from "(\.[^"]+)"', text):
            steps = [*path.split("/")[:-1], *link.split("/")]
            whole: list[str] = []
            for step in steps:
                if step == "..":
                    whole.pop()
                elif step != ".":
                    whole.append(step)
            wanted.append("/".join(whole))
    assert len(seen) > 20


def test_another_version_of_the_page_has_its_files_at_other_addresses(
    served: Page, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Browsers keep the files for good, so an address may never mean another content."""
    shutil.copytree(STATIC, tmp_path / "static")
    monkeypatch.setattr(files, "STATIC", tmp_path / "static")
    before = files.Files()
    assert script_of(served.get("/", cookie=served.cookie())) == before.root + "js/main.js"
    assert before.answer(before.root + "js/main.js").status_code == 200
    with (tmp_path / "static" / "css" / "base.css").open("a") as style:
        style.write("\n")
    after = files.Files()
    assert after.root != before.root
    assert after.answer(before.root + "js/main.js").status_code == 404
    assert before.root not in after.page()
    assert after.root in after.page()


def test_all_scripts_are_named_at_once_so_that_a_browser_need_not_find_them_one_by_one() -> None:
    named = re.findall(r'modulepreload" href="/static/([^"]+)"', (STATIC / "index.html").read_text())
    there = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js")}
    assert sorted(named) == sorted(there - {"js/main.js"})


def script_of(index: Answer) -> str:
    """The address of the page's own script, as the page names it."""
    return re.search(r'src="(/static/[^"]+)"></script>', index.body.decode())[1]  # type: ignore[index]


def test_what_lets_one_in_is_readable_by_the_owner_only(served: Page) -> None:
    for name in ("page.key", "page.json"):
        assert stat.S_IMODE((served.state / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.0.2.1:80", "[::]:0", "nowhere", "127.0.0.1:http"])
def test_it_listens_on_the_loopback_interface_only(tmp_path: Path, listen: str) -> None:
    command = [sys.executable, "-m", "fedserver", "page", "--state", str(tmp_path), "--listen", listen]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert found.returncode == 3
    assert "error[" in found.stderr
    assert not (tmp_path / "page.json").exists()


def test_a_restart_ends_links_and_keeps_sessions(tmp_path: Path) -> None:
    state, listen = tmp_path / "state", f"127.0.0.1:{free_port()}"
    state.mkdir()
    with page(state, listen) as first:
        cookie, unused = first.cookie(), path_of(first.link)
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(HANG) == 0
    command = [sys.executable, "-m", "fedserver", "page", "--link", "--state", str(state)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert found.returncode == 4
    assert "no page is served" in found.stderr
    with page(state, listen) as second:
        assert second.get(unused).status == 401
        assert second.get("/", cookie=cookie).status == 200


def test_only_one_page_listens_on_an_address(served: Page) -> None:
    command = [
        sys.executable,
        "-m",
        "fedserver",
        "page",
        "--state",
        str(served.state),
        "--listen",
        served.address,
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert found.returncode == 3
    assert "in use" in found.stderr
    assert served.get(path_of(served.new_link())).status == 200
