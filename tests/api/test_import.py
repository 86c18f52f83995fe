"""`import shoal` is light, and its version can be read without importing anything."""

import ast
import subprocess
import sys
from pathlib import Path

import shoal

HEAVY = ("torch", "sklearn", "scipy", "grpc", "yaml", "numpy", "matplotlib", "pandas")


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = run("import sys, shoal; print(*sorted(sys.modules))").split()
    assert "shoal" in loaded
    assert [name for name in loaded if name.split(".")[0] in HEAVY or name.startswith("shoal.")] == []


def test_the_client_of_the_daemon_loads_no_torch() -> None:
    loaded = run("import sys, shoal; shoal.Client; print(*sorted(sys.modules))").split()
    assert "shoal.client" in loaded
    assert not {"torch", "sklearn"} & set(loaded)


def test_every_name_of_the_api_is_there_and_has_a_docstring() -> None:
    for name in shoal.__all__:
        found = getattr(shoal, name)
        assert name in dir(shoal)
        assert isinstance(found, str) or found.__doc__, name


def test_a_wrong_name_is_an_attribute_error() -> None:
    assert not hasattr(shoal, "simulat")


def test_the_version_is_a_plain_string_in_the_file() -> None:
    """setuptools reads it without importing the package."""
    tree = ast.parse(Path(shoal.__file__ or "").read_text())
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__"
    ]
    assert [ast.literal_eval(value) for value in values] == [shoal.__version__]
