"""A release, signed by a key of these tests, and its wheels in empty environments."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

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
def maker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public key of who signs here; the other half is beside it."""
    key = Ed25519PrivateKey.generate()
    public = tmp_path_factory.mktemp("maker") / "public.pem"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public.with_name("secret.pem").write_bytes(secret)
    return public


@pytest.fixture(scope="module")
def dist(maker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `scripts/release` has built twice, with the same bytes, and signed."""
    folder = tmp_path_factory.mktemp("dist")
    done = release(maker.with_name("secret.pem"), folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """The wheel of shoal-fed."""
    (found,) = dist.glob("shoal_fed-*.whl")
    return found


@pytest.fixture(scope="module")
def lab(dist: Path) -> Path:
    """The wheel of shoal-lab."""
    (found,) = dist.glob("shoal_lab-*.whl")
    return found


def release(*words: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, str(ROOT / "scripts/release"), *map(str, words)]
    return subprocess.run(line, env={**ENVIRONMENT, **variables}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with nothing but the wheel: no dependencies, and no package of this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    install(folder, wheel)
    return folder


def install(folder: Path, wheel: Path) -> None:
    """Into an environment, without dependencies."""
    options = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", *options)


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


def test_every_file_of_a_release_is_checked_by_its_signature(dist: Path, maker: Path, tmp_path: Path) -> None:
    """Without another key, by the public key of the project, which has not signed this one."""
    named = [line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()]
    (statement,) = dist.glob("shoal-*.release")
    signed = {"SHA256SUMS", "SHA256SUMS.sig", statement.name}
    assert {path.name for path in dist.iterdir()} - signed == {*named}
    assert len([name for name in named if name.endswith((".whl", ".tar.gz"))]) == 4
    assert release("--check", dist, SHOAL_RELEASE_KEY=str(maker)).returncode == 0
    assert release("--check", dist).returncode == 1
    for name in (named[-1], *signed):
        shutil.copytree(dist, tmp_path / name)
        changed = tmp_path / name / name
        content = changed.read_bytes()
        changed.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        assert release("--check", tmp_path / name, SHOAL_RELEASE_KEY=str(maker)).returncode == 1, name


def test_the_contract_is_in_wheel_and_source_distribution(dist: Path, installed: dict[str, object]) -> None:
    """The messages, and the vectors by which another implementation is tried."""
    kinds = ("*.proto", "*.json", "*.bin")
    contract = {str(path.relative_to(ROOT)) for kind in kinds for path in (ROOT / "proto").rglob(kind)}
    assert len(contract) > 100
    files = installed["files"]
    assert isinstance(files, list)
    assert contract <= {path.partition("share/shoal/")[2] for path in files}
    (source,) = dist.glob("shoal_fed-*.tar.gz")
    with tarfile.open(source) as archive:
        assert contract <= {name.partition("/")[2] for name in archive.getnames()}


def test_the_metadata_say_what_a_package_index_shows(wheel: Path, lab: Path) -> None:
    for path in (wheel, lab):
        with zipfile.ZipFile(path) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
            found = message_from_bytes(archive.read(name))
        for field in ("Summary", "Author-email", "Keywords", "Project-URL", "License-Expression"):
            assert found[field], field
        assert found["License-File"] == "LICENSE"
        classifiers = found.get_all("Classifier") or []
        assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(classifiers)


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
        if path.suffix in (".py", ".pyi") and "__pycache__" not in path.parts
    }
    assert len(sources) > 200
    assert sources <= set(files)
    assert not [
        path for path in files if path.startswith(("tests/", "benchmarks/", "build/", "lab/", "shoal_lab/"))
    ]


def test_all_packages_are_marked_as_typed(installed: dict[str, object]) -> None:
    files = installed["files"]
    assert isinstance(files, list)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(files)


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


def test_the_laboratory_adds_its_algorithms_and_verbs(wheel: Path, lab: Path, tmp_path: Path) -> None:
    """In an environment of its own, with this one's packages as the dependencies."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    install(tmp_path, wheel)
    install(tmp_path, lab)
    (packages,) = (tmp_path / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    ask = (
        "import json, shoal_lab; from importlib.metadata import distribution; "
        "from fedserver.__main__ import Verbs; from shoal.core.algorithm import discover; "
        "found = distribution('shoal-lab'); "
        "print(json.dumps([shoal_lab.__file__, found.version, [str(path) for path in found.files], "
        "sorted(discover()), Verbs.modules['table']]))"
    )
    path, version, files, algorithms, table = json.loads(
        run(tmp_path / "bin" / "python", "-c", ask, cwd=tmp_path)
    )
    assert path.startswith(str(tmp_path))
    assert version == wheel.name.split("-")[1]
    assert [name for name in files if name.endswith(".csv")]
    assert "shoal_lab/py.typed" in files
    assert {"flux", "pacfl", "srfca"} <= set(algorithms)
    assert len(algorithms) == 24
    assert table == "shoal_lab.cli.table"
    assert "Reproduce a table" in run(tmp_path / "bin" / "fedserver", "table", "--help", cwd=tmp_path)
