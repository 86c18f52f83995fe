"""What both command lines share: one JSON envelope for programs, plain text for people, and exit codes.

    @click.group(cls=Commands)
    def main() -> None: ...

    @main.command()
    @verb
    def status() -> Result: ...

With `--json`, stdout holds exactly one object, {"schema", "status", "data", "error"}, and the text for people
goes to stderr. Without it, the text goes to stdout and progress to stderr. Exit codes: that of the
ShoalError, 2 for a wrong command line, 130 when interrupted, 70 for a bug. Output has no colors.
"""

import ast
import contextlib
import functools
import importlib.util
import json
import math
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.abc import InspectLoader
from typing import Any, ClassVar

import click

from shoal.core.errors import Bug, LearnerFault, Missing, ShoalError, StorageFault

SCHEMA = 1
USAGE = 2
REPORT = "this is a bug: please report it with the traceback above"
SERVER = "grpcio-health-checking kneed scikit-learn"
PACKAGES = {
    "torch": "torch",
    "sklearn": SERVER,
    "kneed": SERVER,
    "grpc_health": SERVER,
    "onnx": "onnx onnxruntime onnxscript",
    "onnxscript": "onnx onnxruntime onnxscript",
    "onnxruntime": "onnxruntime",
    "opacus": "opacus",
    "psycopg": "'psycopg[binary]'",
    "boto3": "boto3",
}
"""Modules that an installation may lack, and the packages that bring each and what goes with it. Hints name
packages and no extra: there is no Shoal on a package index, and anyone who put one there could run code on
every machine whose owner follows a hint."""


@dataclass(frozen=True)
class Result:
    """The result of a verb. data: for programs; text: for people.

    error: set when the verb did its work and the answer is still a refusal; it gives the exit code.
    """

    data: Mapping[str, Any]
    text: str
    error: ShoalError | None = None


class Become(Exception):
    """Raised by a verb that goes on as another program, in the same process. command: its line. variables:
    its environment."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        super().__init__(*command)
        self.command, self.variables = command, variables


_STEERING = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


class Interrupted(ShoalError):
    """The user pressed Ctrl-C, or no one said yes.

    To do: nothing; `--yes` where there is no one to ask.
    """

    code, exit_code = "interrupted", 130


def confirm(question: str) -> None:
    """Go on only if a person says yes, in a verb that has --yes for scripts. Raises Interrupted."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # there is no terminal, or the answer was Ctrl-C
        hint = "give --yes where there is no one to ask"
        raise Interrupted("no one has answered, so nothing was done", hint) from None
    if not agreed:
        raise Interrupted("the answer was no, so nothing was done")


REMEMBERED = 64
"""Steps that a verb which repeats them remembers; beyond that it forgets them all, and reports them again."""


class Console:
    """Where a verb reports progress, always on stderr: stdout is for its result. repeats: whether it does the
    same steps again and again for months, so that a log has each of them once."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._last = ""
        self._said = set[str]()
        self.repeats = False

    def progress(self, text: str) -> None:
        """Show the current step: on a terminal in one line that is overwritten, else one line per change."""
        if text == self._last:
            return
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[2K{printable(one_line(text))[:width]}")
            sys.stderr.flush()
        elif text not in self._said:
            click.echo(printable(continued(text)), err=True)
        self._last = text
        if self.repeats:
            if len(self._said) >= REMEMBERED:  # others may have chosen the texts, and it goes on for months
                self._said.clear()
            self._said.add(text)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        click.echo(printable(text), err=True)

    def clear(self) -> None:
        """Remove the live line."""
        if self._live and self._last:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._last = ""


def printable(text: str) -> str:
    """A text that is safe to print even if a stranger wrote it: characters that control the terminal or
    change the writing direction are shown as escapes. Line ends and tabs stay."""
    return text.translate(_STEERING)


def one_line(text: str) -> str:
    """A text of a stranger as one line of a table: line ends are shown as escapes."""
    return "\\n".join(text.splitlines())


def continued(text: str) -> str:
    """A text of a stranger that may have several lines: none but the first looks like a line of ours.

    Example:
        >>> print(continued("it failed\\nerror[revoked]: made up"))
        it failed
          | error[revoked]: made up
    """
    return "\n  | ".join(text.splitlines())


def verb(function: Callable[..., Result]) -> Callable[..., int]:
    """Make a click callback from a function that returns a Result. Adds --json.

    A function that reports progress gets its Console first, by `@click.pass_obj`.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout.")
    @functools.wraps(function)
    def callback(*arguments: Any, as_json: bool, **options: Any) -> int:
        console = click.get_current_context().obj = Console()
        try:
            with _stdout_kept_free() if as_json else contextlib.nullcontext():
                result = function(*arguments, **options)
        except Become as other:
            console.clear()
            sys.stdout.flush()
            sys.stderr.flush()
            os.execve(other.command[0], [*other.command], other.variables)  # noqa: S606
        finally:
            console.clear()
        if result.text:
            click.echo(printable(result.text), err=as_json)
        if result.error is not None:
            return _fail(result.error, as_json, result.data)
        if as_json:
            _envelope("ok", result.data, None)
        return 0

    return callback


@contextlib.contextmanager
def _stdout_kept_free() -> Iterator[None]:
    """Redirect to stderr what an author's code or a native library prints on stdout meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class Group(click.Group):
    """A group whose help says a whole sentence about each verb, where click would cut it to a line, in the
    order in which the verbs were added, where click would sort them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def texts(self, ctx: click.Context) -> dict[str, str]:
        """The help text of each verb that is listed."""
        verbs = {verb: self.get_command(ctx, verb) for verb in self.list_commands(ctx)}
        return {verb: command.help or "" for verb, command in verbs.items() if command and not command.hidden}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (verb, click.Command(verb, help=text).get_short_help_str(limit=sys.maxsize))
                    for verb, text in self.texts(ctx).items()
                ]
            )


class Commands(Group):
    """A group of verbs that ends with the right exit code, and with the JSON envelope if `--json` is given.

    modules: the module of each verb, which defines it under the verb's own name. A module is imported only
    when its verb is used, so that no verb pays for the imports of another, and `--help` for none.
    """

    modules: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.modules, *super().list_commands(ctx)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:  # click looks only at verbs that are loaded
            if close := get_close_matches(args[0], self.modules, n=1):
                said = f"{error.format_message()} Did you mean {close[0]!r}?"
                raise click.UsageError(said, ctx) from None
            raise

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.modules:
            module = importlib.import_module(self.modules[cmd_name])
            command: click.Command = getattr(module, cmd_name.replace("-", "_"))
            return command
        return super().get_command(ctx, cmd_name)

    def texts(self, ctx: click.Context) -> dict[str, str]:
        texts = {verb: _docstring(module, verb.replace("-", "_")) for verb, module in self.modules.items()}
        return texts | {
            verb: command.help or "" for verb, command in self.commands.items() if not command.hidden
        }

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it logs each lost handshake; calls have errors
        run = functools.partial(
            super().main, arguments, prog_name, complete_var, False, windows_expand_args, **extra
        )
        if not standalone_mode:
            return run()
        sys.exit(_exit_code(run, "--json" in arguments))


def _docstring(module: str, name: str) -> str:
    """The docstring of a function, read from the source of its module; "" if there is no such function."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:  # a verb of another distribution that is installed in part
        spec = None
    source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
    functions = (node for node in ast.parse(source or "").body if isinstance(node, ast.FunctionDef))
    return next((ast.get_docstring(node) or "" for node in functions if node.name == name), "")


def _exit_code(run: Callable[[], Any], as_json: bool) -> int:
    """Run a command line and return its exit code; print the error if there is one."""
    try:
        code = run()
    except ShoalError as error:
        return _fail(error, as_json)
    except click.ClickException as error:
        error.show()
        if as_json:
            context = getattr(error, "ctx", None)
            hint = f"see {context.command_path} --help" if context else ""
            _envelope("error", {}, {"code": "usage", "message": error.format_message(), "hint": hint})
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        return _fail(Interrupted("interrupted"), as_json)
    except ModuleNotFoundError as error:
        if (name := (error.name or "").partition(".")[0]) not in PACKAGES:
            traceback.print_exc()
            return _fail(Bug(f"{type(error).__name__}: {error}", REPORT), as_json)
        return _fail(Missing(f"this needs {name}", f"pip install {PACKAGES[name]}"), as_json)
    except PermissionError as error:  # wherever a path was looked at: it is a right that is wrong, and no bug
        from shoal.shell.disk import RIGHTS

        return _fail(StorageFault(str(error), RIGHTS), as_json)
    except Exception as error:
        traceback.print_exc()
        return _fail(Bug(f"{type(error).__name__}: {error}", REPORT), as_json)
    return code if isinstance(code, int) else 0


def _fail(error: ShoalError, as_json: bool, data: Mapping[str, Any] | None = None) -> int:
    if isinstance(error, LearnerFault) and error.details:
        click.echo(printable(error.details.rstrip()), err=True)
    click.echo(printable(f"error[{error.code}]: {continued(error.message)}"), err=True)
    if error.hint:
        click.echo(printable(f"  hint: {continued(error.hint)}"), err=True)
    if as_json:
        _envelope("error", data or {}, {"code": error.code, "message": error.message, "hint": error.hint})
    return error.exit_code


def _envelope(status: str, data: Mapping[str, Any], error: Mapping[str, str] | None) -> None:
    envelope = {"schema": SCHEMA, "status": status, "data": _plain(data), "error": error}
    click.echo(json.dumps(envelope, allow_nan=False, default=str))


def _plain(value: Any) -> Any:
    """`value` as JSON: NaN and infinity, which JSON does not have, become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
