"""The documentation site builds in strict mode, and every page of docs/ is in it."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file()
    for page in ("index", "architecture", "contributing", "changelog", "security", "deployment"):
        assert (site / f"{page}.html").is_file()
    assert (site / "laboratory.html").is_file()


def test_the_site_loads_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?://[^\"]+", page.read_text())


def test_links_between_pages_of_the_repository_lead_to_pages_of_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        for link in re.findall(r"href=\"([^\"#:]+\.(?:md|html))", page.read_text()):
            assert link.endswith(".html")
            assert (page.parent / link).resolve().is_file() or page.name == "404.html", f"{page}: {link}"


def test_the_reference_shows_the_public_names(site: Path) -> None:
    page = (site / "api" / "shoal.html").read_text()
    for name in ("shoal.Fleet", "shoal.simulate", "shoal.Result", "shoal.Placement"):
        assert f'id="{name}"' in page


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_paths_that_a_page_names_exist(page: str) -> None:
    folders = "shoal|fedserver|fedclient|lab|tests|scripts|proto|benchmarks"
    paths = re.findall(rf"`((?:{folders})/[\w/.]*)`", (ROOT / page).read_text())
    assert len(paths) > 10
    assert not [path for path in paths if "nova" not in path and not (ROOT / path).exists()]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_uses_exists(path: Path) -> None:
    """Pages name them, and no test runs them."""
    assert importlib.import_module(f"benchmarks.{path.stem}").__doc__
