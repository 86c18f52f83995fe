"""A learner as the text of a learner.py: the author's classes and functions, with what they use.

What was defined in a notebook or a script is copied from there, name by name; what an installed package
defines is imported. Nothing else of the notebook comes along.
"""

import ast
import builtins
import inspect
import linecache
import symtable
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import packages_distributions
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from shoal.core.device_kit.learner import PARTS, Learner
from shoal.core.errors import ConfigError
from shoal.shell.learners import FROM_FILE

HINT = "write the network to a learner.py, and simulate with model='learner.py'"


def files_of(learner: Learner) -> dict[str, str]:
    """The files of a learner by their names, learner.py among them.

    Raises ConfigError for what has no text, such as a network that was built already.
    """
    module = sys.modules.get(getattr(learner.build, "__module__", None) or "")
    if module is not None and module.__name__.startswith(FROM_FILE) and module.__file__:
        return _with_those_beside(Path(module.__file__), learner, module)
    writer = _Writer()
    for part in PARTS:
        value = getattr(learner, part)
        if isinstance(value, str):
            writer.lines.append(f"{part} = {value!r}")
        elif value is not None and (found := writer.expression(part, value)) != part:
            writer.lines.append(f"{part} = {found}")
    return {"learner.py": "\n".join([*sorted(writer.imports), "", *writer.lines, ""])}


def _with_those_beside(path: Path, learner: Learner, module: ModuleType) -> dict[str, str]:
    """A learner's file, and those of its folder that it imports."""
    text = path.read_text()
    if learner.latent != getattr(module, "latent", None):
        text += f"\n\nlatent = {learner.latent!r}\n"
    found, left = {"learner.py": text}, [text]
    while left:
        for node in ast.walk(ast.parse(left.pop())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in (f"{name.partition('.')[0]}.py" for name in names):
                if name not in found and (beside := path.with_name(name)).is_file():
                    found[name] = beside.read_text()
                    left.append(found[name])
    return found


class _Writer:
    """imports, lines: of the file so far; what a line uses is in one before it."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.lines: list[str] = []
        self._defined: dict[str, Any] = {}

    def expression(self, name: str, value: Any) -> str:
        """How the file refers to a value that is called `name` where it is used. Raises ConfigError."""
        if isinstance(value, partial):
            self.imports.add("from functools import partial")
            given = [self._literal(name, each) for each in value.args]
            given += [f"{key}={self._literal(name, each)}" for key, each in value.keywords.items()]
            return f"partial({', '.join([self.expression(name, value.func), *given])})"
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            own = value.__name__
            if own == "<lambda>" or "<locals>" in value.__qualname__:
                raise ConfigError(f"{name} is defined within another function, so it has no text", HINT)
            if _is_installed(value.__module__):
                self.imports.add(f"from {value.__module__} import {own}")
            elif own not in self._defined:
                self._defined[own] = value
                self._define(own, value)
            return own
        return self._literal(name, value)

    def _define(self, name: str, value: Any) -> None:
        """Write a class or function of the author's, after what it uses."""
        text, known = _text_of(name, value)
        for other in _names_in(text):
            if other in self._defined or not (other in known or hasattr(builtins, other)):
                continue
            if other in known:
                self._bind(other, known[other])
        self.lines.append(f"\n{text}\n\n")

    def _bind(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _is_installed(value.__name__):
            same = value.__name__ == name
            self.imports.add(f"import {value.__name__}" + ("" if same else f" as {name}"))
            return
        if (found := self.expression(name, value)) != name:
            own = isinstance(value, type | FunctionType) and _is_installed(value.__module__)
            if own:
                self.imports.discard(f"from {value.__module__} import {found}")
                self.imports.add(f"from {value.__module__} import {found} as {name}")
            else:
                self.lines.append(f"{name} = {found}")
        self._defined.setdefault(name, value)

    def _literal(self, name: str, value: Any) -> str:
        try:
            if ast.literal_eval(repr(value)) == value:
                return repr(value)
        except (ValueError, SyntaxError, TypeError):
            pass
        raise ConfigError(f"the network uses {name}, a {type(value).__name__}, which is not written", HINT)


def _is_installed(module: str) -> bool:
    root = module.partition(".")[0]
    known = (sys.stdlib_module_names - {"__main__"}) | {"shoal"}
    return root in known or root in packages_distributions()


def _text_of(name: str, value: Any) -> tuple[str, dict[str, Any]]:
    """The text of a class or function, and the names that are known where it stands."""
    functions = [value] if isinstance(value, FunctionType) else []
    functions += [each for each in vars(value).values() if isinstance(each, FunctionType)]
    code = next((each for each in functions if each.__module__ == value.__module__), None)
    file = code.__code__.co_filename if code else inspect.getsourcefile(value) or ""
    text = "".join(linecache.getlines(file))  # also of a notebook's cells, which no file has
    found = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
    ]
    if not found:
        raise ConfigError(f"the text of {name} is not to be found", HINT)
    first = min([found[-1].lineno, *(each.lineno for each in found[-1].decorator_list)])
    lines = text.splitlines()[first - 1 : found[-1].end_lineno]
    return "\n".join(lines), vars(sys.modules[value.__module__])


def _names_in(text: str) -> list[str]:
    """The names that a text takes from around it, in their order."""

    def of(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_global():
                yield symbol.get_name()
        for child in table.get_children():
            yield from of(child)

    return list(dict.fromkeys(of(symtable.symtable(text, "learner", "exec"))))
