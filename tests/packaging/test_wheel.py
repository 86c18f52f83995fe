"""The wheel, built from a copy of the sources and installed into an empty environment."""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("shoal", "fedserver", "fedclient")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}

ASK = """
import importlib.metadata, json, pathlib, sys
found = importlib.metadata.distribution("shoal-fed")
import shoal
print(json.dumps({
    "version": found.version,
    "files": [str(path) for path in found.files],
    "commands": {point.name: point.value for point in found.entry_points if point.group == "console_scripts"},
    "requires": found.requires,
    "shoal": str(pathlib.Path(shoal.__file__).parent),
    "loaded": sorted(set(sys.modules) & {"numpy", "torch", "sklearn", "grpc"}),
    "__version__": shoal.__version__,
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make dist` builds. It is built from a copy, since a build writes into its sources."""
    sources = tmp_path_factory.mktemp("sources")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, sources / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", sources / "dist", sources)
    (built,) = (sources / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with nothing but the wheel: no dependencies, and no package of this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    install = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", *install)
    return folder


@pytest.fixture(scope="module")
def installed(environment: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(run(environment / "bin" / "python", "-c", ASK, cwd=environment))
    return found


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_importing_shoal_needs_none_of_its_dependencies(
    installed: dict[str, object], environment: Path
) -> None:
    assert str(installed["shoal"]).startswith(str(environment))
    assert installed["loaded"] == []
    assert installed["version"] == installed["__version__"]


def test_the_wheel_holds_every_source_file_and_nothing_of_the_tests(installed: dict[str, object]) -> None:
    files = installed["files"]
    assert isinstance(files, list)
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".pyi", ".csv") and "__pycache__" not in path.parts
    }
    assert len(sources) > 200
    assert sources <= set(files)
    assert not [path for path in files if path.startswith(("tests/", "benchmarks/", "build/"))]


def test_all_packages_are_marked_as_typed(installed: dict[str, object]) -> None:
    files = installed["files"]
    assert isinstance(files, list)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(files)


def test_the_published_tables_are_in_the_wheel(installed: dict[str, object]) -> None:
    files = installed["files"]
    assert isinstance(files, list)
    assert [path for path in files if path.endswith(".csv")]


def test_both_commands_start_from_the_wheel(installed: dict[str, object], environment: Path) -> None:
    """With this environment's packages as the dependencies; a path file activates no editable install."""
    assert installed["commands"] == {
        "fedserver": "fedserver.__main__:main",
        "fedclient": "fedclient.__main__:main",
    }
    (packages,) = (environment / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = "import fedserver, fedclient; print(fedserver.__file__, fedclient.__file__)"
    for path in run(environment / "bin" / "python", "-c", where, cwd=environment).split():
        assert path.startswith(str(environment))
    for command in ("fedserver", "fedclient"):
        assert f"Usage: {command} [OPTIONS] COMMAND" in run(
            environment / "bin" / command, "--help", cwd=environment
        )
        assert str(installed["version"]) in run(environment / "bin" / command, "--version", cwd=environment)


def test_the_base_requirements_name_neither_torch_nor_scikit_learn(installed: dict[str, object]) -> None:
    requires = installed["requires"]
    assert isinstance(requires, list)
    base = [each for each in requires if "extra ==" not in each]
    assert base
    assert not [each for each in base if each.startswith(("torch", "scikit-learn"))]
