"""No line of ours makes code out of data, hands a shell a text, or opens a plain port that no one asked for.

Every program of the product is read as a syntax tree. What is allowed all the same stands below, with its
reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("shoal", "fedserver", "fedclient", "scripts", "examples", "benchmarks")

UNPICKLERS = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "jsonpickle",
}
EVALUATORS = {"eval", "exec", "compile", "__import__"}
ALWAYS = {
    "os.system",
    "os.popen",
    "builtins.eval",
    "builtins.exec",
    "builtins.compile",
    "builtins.__import__",
    "runpy.run_path",
    "runpy.run_module",
    "yaml.unsafe_load",
    "yaml.unsafe_load_all",
    "yaml.full_load",
    "yaml.full_load_all",
    "torch.jit.load",
    "torch.hub.load",
}
"""Calls that are never right here."""
SAFE_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader", "SafeLoader", "CSafeLoader"}
MODULES_BY_NAME = {"importlib.import_module", "importlib.util.spec_from_file_location"}
PLAIN = {"add_insecure_port", "insecure_channel"}

ALLOWED = {
    (
        "fedserver/rpc/server.py",
        "add_insecure_port",
    ): "only loopback, which is checked, and Unix sockets",
    ("fedserver/rpc/channel.py", "insecure_channel"): "the operators' Unix socket",
    ("fedclient/net/rpc.py", "insecure_channel"): "only where the owner's settings say insecure_loopback",
    ("shoal/__init__.py", "importlib.import_module"): "one of the names in the table beside it",
    ("fedclient/light/ready.py", "importlib.import_module"): "modules of ours, named beside it",
    ("shoal/core/algorithm/card.py", "importlib.import_module"): "the halves of an installed algorithm",
    ("shoal/core/algorithm/discovery.py", "importlib.import_module"): "the algorithms of this package",
    ("shoal/core/models/__init__.py", "importlib.import_module"): "one of the names in the table beside it",
    ("shoal/shell/console.py", "importlib.import_module"): "one of the names in a table of the command line",
    ("shoal/shell/learners.py", "importlib.import_module"): "the owner's settings name the author's code",
    ("shoal/shell/learners.py", "importlib.util.spec_from_file_location"): "the same, as a file",
    ("fedclient/work/data.py", "importlib.import_module"): "the owner's settings name the function",
    ("scripts/errors", "importlib.import_module"): "the modules of this repository",
}
"""Who may do what all the same, and why: in no case does a peer have a word in it."""


def programs() -> list[Path]:
    """Every Python file of the product, those without an ending too."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in found if path.suffix == ".py" or _is_script(path)]


def _is_script(path: Path) -> bool:
    return (
        not path.suffix and path.read_bytes()[:64].startswith(b"#!") and b"python" in path.read_bytes()[:64]
    )


def dangers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What is dangerous in a program, and in which line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in UNPICKLERS:
                    yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in UNPICKLERS:
                yield str(node.module), node.lineno
        elif isinstance(node, ast.Call):
            for danger in _of_call(node):
                yield danger, node.lineno
        elif isinstance(node, ast.Name) and node.id in EVALUATORS:
            yield node.id, node.lineno


def _of_call(call: ast.Call) -> Iterator[str]:
    name = _name(call.func)
    last, keywords = name.split(".")[-1], {word.arg: word.value for word in call.keywords}
    if name in ALWAYS:
        yield name
    if name == "torch.load" and not _is(keywords.get("weights_only"), True):
        yield "torch.load without weights_only"
    if "allow_pickle" in keywords and not _is(keywords["allow_pickle"], False):
        yield "allow_pickle"
    if name in ("yaml.load", "yaml.load_all"):
        loader = keywords.get("Loader") or (call.args[1] if len(call.args) > 1 else None)
        if loader is None or _name(loader) not in SAFE_LOADERS:
            yield f"{name} without a safe loader"
    if "shell" in keywords and not _is(keywords["shell"], False):
        yield "shell"
    if last in PLAIN:
        yield last
    if name in MODULES_BY_NAME and not isinstance(call.args[0], ast.Constant):
        yield name


def _is(value: ast.expr | None, constant: bool) -> bool:
    return isinstance(value, ast.Constant) and value.value is constant


def _name(function: ast.expr) -> str:
    """ "a.b.c" of such an expression, else ""."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    return (
        ".".join(reversed([*parts, function.id])) if isinstance(function, ast.Name) else ".".join(parts[:1])
    )


def test_nothing_dangerous_is_done_but_what_has_a_reason() -> None:
    files = programs()
    assert len(files) > 100
    found = {
        (str(path.relative_to(ROOT)), what): line
        for path in files
        for what, line in dangers(ast.parse(path.read_bytes(), str(path)))
    }
    assert {place: line for place, line in found.items() if place not in ALLOWED} == {}
    assert [place for place in ALLOWED if place not in found] == []  # a reason that is no longer needed


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "import os, cloudpickle as harmless",
        "from dill import *",
        "eval(text)",
        "run = exec",
        "compile(text, '', 'exec')",
        "__import__(name)",
        "builtins.eval(text)",
        "importlib.import_module(name)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "np.load(path, allow_pickle=True)",
        "numpy.load(path, allow_pickle=flag)",
        "yaml.load(text)",
        "yaml.load(text, yaml.Loader)",
        "yaml.load_all(text, Loader=yaml.UnsafeLoader)",
        "yaml.full_load(text)",
        "subprocess.run(text, shell=True)",
        "Popen(text, shell=flag)",
        "os.system(text)",
        "runpy.run_path(path)",
        "server.add_insecure_port(address)",
        "aio.insecure_channel(address)",
    ],
)
def test_what_is_dangerous_is_found(line: str) -> None:
    assert list(dangers(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "re.compile(pattern)",
        "model.eval()",
        "importlib.import_module('sklearn.datasets')",
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "yaml.safe_load(text)",
        "subprocess.run(command, shell=False)",
        "server.add_secure_port(address, credentials)",
    ],
)
def test_what_is_harmless_is_not(line: str) -> None:
    assert not list(dangers(ast.parse(line)))
