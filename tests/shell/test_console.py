"""The envelope, the streams and the exit codes that both command lines promise."""

import errno
import importlib
import json
import os
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from click.testing import Result as Outcome

from fedserver.__main__ import main
from shoal.core.errors import ConfigError, LearnerFault, Refused
from shoal.shell.console import REMEMBERED, Commands, Console, Result, continued, one_line, printable, verb


@click.group(cls=Commands)
def cli() -> None:
    """Verbs to try."""


@cli.command()
@verb
@click.pass_obj
@click.option("--name", default="you")
def greet(console: Console, name: str) -> Result:
    console.progress("greeting")
    console.progress("greeting")
    return Result({"name": name, "ratio": float("nan"), "deep": [{"x": float("inf")}]}, f"hello {name}")


@cli.command()
@verb
def noisy() -> Result:
    print("an author's print")
    os.write(1, b"a library's message\n")
    subprocess.run(["echo", "a child's words"], check=True)
    return Result({"a": 1}, "done")


@cli.command()
@verb
@click.argument("how")
def fail(how: str) -> Result:
    if how == "config":
        raise ConfigError("a.yaml: x is missing", "write x")
    if how == "learner":
        raise LearnerFault("train() failed", "fix it", "Traceback\n  boom")
    if how == "stop":
        raise KeyboardInterrupt
    if how == "partly":
        return Result({"found": 1}, "found one", Refused("not that one", "try another"))
    if how == "package":
        raise ModuleNotFoundError("No module named 'sklearn.cluster'", name="sklearn.cluster")
    if how == "right":
        raise PermissionError(errno.EACCES, "Permission denied", "/state/model")
    raise ZeroDivisionError("one over none")


@cli.command(deprecated="use greet")
@verb
@click.option("--loud", is_flag=True, deprecated="use --name")
def hail(loud: bool) -> Result:
    return Result({"loud": loud}, "hail")


def call(*arguments: str) -> Outcome:
    return CliRunner().invoke(cli, arguments)


def envelope(outcome: Outcome) -> dict[str, object]:
    """The only thing on stdout, checked as JSON without NaN."""
    lines = outcome.stdout.splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0], parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert list(found) == ["schema", "status", "data", "error"]
    assert found["schema"] == 1
    return dict(found)


def test_text_goes_to_stdout_and_progress_to_stderr() -> None:
    outcome = call("greet", "--name", "Ada")
    assert (outcome.exit_code, outcome.stdout) == (0, "hello Ada\n")
    assert outcome.stderr == "greeting\n"  # once: the text did not change


def test_json_has_stdout_for_itself_and_no_nan() -> None:
    outcome = call("greet", "--json")
    found = envelope(outcome)
    assert (outcome.exit_code, found["status"], found["error"]) == (0, "ok", None)
    assert found["data"] == {"name": "you", "ratio": None, "deep": [{"x": None}]}
    assert outcome.stderr == "greeting\nhello you\n"


def test_what_else_prints_cannot_spoil_the_json() -> None:
    """In a process of its own: the real file descriptors count."""
    command = [
        sys.executable,
        "-c",
        "from tests.shell.test_console import cli; cli()",
        "noisy",
        "--json",
    ]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(outcome.stdout)["data"] == {"a": 1}
    for words in ("an author's print", "a library's message", "a child's words", "done"):
        assert words in outcome.stderr


def test_a_right_that_is_missing_is_no_bug() -> None:
    outcome = call("fail", "right")
    assert (outcome.exit_code, "Traceback" in outcome.stderr) == (8, False)
    assert "/state/model" in outcome.stderr


def test_an_error_says_code_and_mend_and_has_its_exit_code() -> None:
    outcome = call("fail", "config")
    assert (outcome.exit_code, outcome.stdout) == (3, "")
    assert outcome.stderr == "error[bad-config]: a.yaml: x is missing\n  hint: write x\n"


def test_an_error_is_an_envelope_too() -> None:
    outcome = call("fail", "config", "--json")
    error = {"code": "bad-config", "message": "a.yaml: x is missing", "hint": "write x"}
    assert envelope(outcome) == {"schema": 1, "status": "error", "data": {}, "error": error}
    assert outcome.exit_code == 3


def test_an_author_sees_the_own_traceback() -> None:
    assert call("fail", "learner").stderr.startswith("Traceback\n  boom\nerror[learner-failed]")


def test_a_result_may_come_with_an_error() -> None:
    outcome = call("fail", "partly", "--json")
    found = envelope(outcome)
    assert (outcome.exit_code, found["status"], found["data"]) == (5, "error", {"found": 1})
    assert call("fail", "partly").stdout == "found one\n"


@pytest.mark.parametrize("arguments", [("greet", "--nmae", "x"), ("fail",), ("nothing",)])
def test_a_wrong_command_line_is_2(arguments: tuple[str, ...]) -> None:
    assert call(*arguments).exit_code == 2
    outcome = call(*arguments, "--json")
    error = envelope(outcome)["error"]
    assert outcome.exit_code == 2
    assert isinstance(error, dict)
    assert error["code"] == "usage"


def test_a_wrong_verb_names_the_nearest_one_also_before_it_is_loaded() -> None:
    for wrong, said in (
        ("statsu", "No such command 'statsu'. Did you mean 'status'?"),
        ("x", "command 'x'."),
    ):
        with pytest.raises(click.UsageError) as caught:
            main.main([wrong], "fedserver", standalone_mode=False)
        assert caught.value.format_message().endswith(said)


def test_an_interruption_is_130() -> None:
    outcome = call("fail", "stop", "--json")
    assert outcome.exit_code == 130
    assert envelope(outcome)["status"] == "error"


def test_a_bug_is_70_with_a_traceback_for_people() -> None:
    outcome = call("fail", "bug", "--json")
    error = envelope(outcome)["error"]
    assert outcome.exit_code == 70
    assert isinstance(error, dict)
    assert error["code"] == "bug"
    assert "ZeroDivisionError: one over none" in outcome.stderr
    assert "Traceback" not in outcome.stdout


def test_a_package_of_an_extra_is_named_and_no_bug() -> None:
    outcome = call("fail", "package")
    assert (outcome.exit_code, "Traceback" in outcome.stderr) == (3, False)
    assert "error[missing-package]: this needs sklearn" in outcome.stderr
    assert "pip install grpcio-health-checking kneed scikit-learn" in outcome.stderr


def test_help_is_0() -> None:
    assert call("greet", "--help").exit_code == 0


class Terminal:
    """A stream that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "11")
    shown = Console()
    shown.progress("round 1")
    shown.progress("round 2 of a long run")
    assert terminal.text == "\r\x1b[2Kround 1\r\x1b[2Kround 2 of"
    shown.clear()
    shown.clear()
    assert terminal.text.endswith("round 2 of\r\x1b[2K")
    assert "\n" not in terminal.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("done\rfailed", "done\\x0dfailed"),
        ("\x9b2J", "\\x9b2J"),
        ("abc\u202ecba", "abc\\u202ecba"),
        ("90° Grüße", "90° Grüße"),
    ],
)
def test_a_strangers_text_cannot_steer_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x0b", "\x85", "\u2028"])
def test_a_strangers_text_makes_no_line_of_its_own(end: str) -> None:
    assert one_line(f"a{end}b") == "a\\nb"
    assert continued(f"a{end}b") == "a\n  | b"


@pytest.mark.parametrize(
    ("program", "typed", "completed"),
    [
        ("fedserver", "st", ["status"]),
        ("fedserver", "re", ["release", "restore", "recover"]),
        ("fedclient", "jo", ["join"]),
    ],
)
def test_shells_complete_the_verbs_of_both_programs(program: str, typed: str, completed: list[str]) -> None:
    main = importlib.import_module(f"{program}.__main__").main
    found = ShellComplete(main, {}, program, f"_{program.upper()}_COMPLETE").get_completions([], typed)
    assert sorted(item.value for item in found) == sorted(completed)


def test_what_is_deprecated_says_what_takes_its_place_and_does_its_work() -> None:
    found = call("hail", "--loud", "--json")
    assert (found.exit_code, json.loads(found.stdout)["data"]) == (0, {"loud": True})
    assert "use greet" in found.stderr
    assert "use --name" in found.stderr
    assert "use --name" not in call("hail").stderr


def test_who_repeats_its_steps_for_months_says_each_of_them_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Console()
    shown.repeats = True
    for _ in range(3):
        shown.progress("asking")
        shown.progress("trying")
    shown.say("another model is used")
    shown.say("another model is used")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["asking", "trying", "another model is used", "another model is used"]


def test_the_steps_that_are_remembered_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Console()
    shown.repeats = True
    for text in ["asking", *(f"waiting: {number}" for number in range(REMEMBERED)), "asking"]:
        shown.progress(text)
    assert capsys.readouterr().err.splitlines().count("asking") == 2
