"""Plays a scenario: a text of commands for the round engine, with what came of each command below it.

    # The last report closes the round.            a comment, kept as it is
    > run rounds=2 minimum=2                       a command
    > join a b
    > tick 0
      opened round 1 "round 1": a, b               what came of it: effects, an error, ...
      offer a: Train, round 1, attempt 1
      offer b: Train, round 1, attempt 1
      waiting: 0 of 2 reports are in; from a, b; 3600 s left        ... and what the run waits for, if changed

Commands:

    run [rounds=N] [seed=N] [FIELD=VALUE ...]   a new run of the counting algorithm; the fields of RoundPolicy
    known DEVICE ...                            the devices that may take part, for the waiting text
    join | heard | leave | revoke DEVICE ...    one event for each device
    report DEVICE [round=N] [attempt=N]         a report is stored; by default of the open round and attempt
    fail DEVICE REASON ...                      the same for a failure
    tick SECONDS                                the time has come to this
    reduce                                      the reduction that was asked for is done
    damage DEVICE ...                           the stored reports of these devices are damaged
    change FIELD=VALUE ...                      an operator changes these fields of the policy
    roll back ROUND                             to the state that round ROUND opened with
    restart                                     the server stops; a new engine starts from what was saved

The algorithm is `tests.core.counting`: device d answers a model x with x + 1, and reduce takes the mean.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.algorithm import Report
from shoal.core.engine.events import (
    Abandon,
    Changed,
    Damaged,
    Effect,
    Event,
    Failed,
    Finished,
    Heard,
    Joined,
    Left,
    Offer,
    Opened,
    Reduce,
    Reduced,
    Reported,
    RolledBack,
    Save,
    SteppedIn,
    Tick,
    Withdraw,
)
from shoal.core.engine.round.attendance import Memory
from shoal.core.engine.rounds import RoundEngine, RoundPolicy
from shoal.core.errors import ShoalError
from shoal.core.exchange.messages import Trained
from tests.core import counting

FOLDER = Path(__file__).parent
INDENT = "  "


def scenarios() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def played(text: str) -> str:
    """The text of a scenario with what comes of each command now."""
    player = Player()
    lines = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line.startswith("> "):
            lines += [INDENT + said for said in player.play(line.removeprefix("> "))]
    return "\n".join(lines) + "\n"


class Player:
    """A driver of the engine that carries effects out as the server does, and writes them down."""

    def __init__(self) -> None:
        self._commands: dict[str, Callable[[list[str], dict[str, str]], Iterator[str]]] = {
            "run": self._run,
            "known": self._know,
            "join": lambda names, _: self._each(Joined(name) for name in names),
            "heard": lambda names, _: self._each(Heard(name) for name in names),
            "leave": lambda names, _: self._each(Left(name) for name in names),
            "revoke": lambda names, _: self._each(Left(name, "it was revoked", True) for name in names),
            "report": self._report,
            "fail": self._fail,
            "tick": self._tick,
            "reduce": self._reduce,
            "damage": lambda names, _: self._damage(names),
            "change": self._change,
            "roll": lambda words, _: self._feed(RolledBack(self._saved[int(words[1])], "rolled back")),
            "restart": self._restart,
        }
        self._engine: RoundEngine
        self._known: list[str] = []
        self._saved: dict[int, counting.State] = {}
        self._policy, self._seed = RoundPolicy(), 42
        # What the server has on disk of the round that is open.
        self._asked: tuple[str, ...] = ()
        self._stepped_in: list[tuple[str, ...]] = []
        self._memory = Memory()
        self._opened, self._now = 0.0, 0.0
        self._stored: list[str] = []
        self._abandoned = 0
        self._reducing: tuple[str, ...] = ()
        self._waiting = ""

    def play(self, command: str) -> Iterator[str]:
        """Carry one command out, and yield what came of it."""
        verb, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            yield from self._commands[verb]([word for word in words if "=" not in word], options)
        except ShoalError as error:
            yield f"{type(error).__name__}: {error}"
        found = self._engine.waiting(self._known)
        whom = f"; from {', '.join(found.devices)}" if found.devices else ""
        left = "" if found.seconds is None else f"; {found.seconds:g} s left"
        waiting = f"{found.text}{whom}{left}"
        if waiting != self._waiting:
            self._waiting = waiting
            yield f"waiting: {waiting}"

    # -- commands ---------------------------------------------------------------------------------------

    def _run(self, _: list[str], options: dict[str, str]) -> Iterator[str]:
        rounds = int(options.pop("rounds", "3"))
        self._seed = int(options.pop("seed", "42"))
        self._policy = RoundPolicy(**_typed(options))
        self._saved = {1: counting.start(counting.model(), rounds)}
        self._engine = RoundEngine(counting, self._policy, self._seed, self._saved[1])
        yield from ()

    def _know(self, names: list[str], _: dict[str, str]) -> Iterator[str]:
        self._known = names
        yield from ()

    def _tick(self, words: list[str], _: dict[str, str]) -> Iterator[str]:
        self._now = float(words[0])
        yield from self._feed(Tick(self._now))

    def _report(self, names: list[str], options: dict[str, str]) -> Iterator[str]:
        for name in names:
            yield from self._feed(Reported(name, *self._lease(name, options)))
            self._stored.append(name)

    def _fail(self, words: list[str], options: dict[str, str]) -> Iterator[str]:
        yield from self._feed(Failed(words[0], *self._lease(words[0], options), " ".join(words[1:])))

    def _reduce(self, _: list[str], options: dict[str, str]) -> Iterator[str]:
        state = self._engine.state
        assert isinstance(state, counting.State)
        answer = Trained({"w": state.models["global"]["w"] + np.float32(1)}, examples=1, loss=0.5)
        reports = [Report(name, answer) for name in self._reducing]
        # Without reports the engine has asked for no reduction, and has to refuse this one.
        reduced = counting.reduce(state, reports) if reports else state
        yield from self._feed(Reduced(int(options.get("round", self._engine.round)), reduced))

    def _damage(self, names: list[str]) -> Iterator[str]:
        self._stored = [name for name in self._stored if name not in names]
        yield from self._feed(Damaged(self._engine.round, tuple(names), "its report was damaged"))

    def _change(self, _: list[str], options: dict[str, str]) -> Iterator[str]:
        self._policy = replace(self._policy, **_typed(options))
        yield from self._feed(Changed(self._policy, self._engine.state))

    def _restart(self, _: list[str], __: dict[str, str]) -> Iterator[str]:
        number = max(self._saved)
        self._engine = RoundEngine(
            counting,
            self._policy,
            self._seed,
            self._saved[number],
            round=number,
            asked=self._asked,
            stepped_in=self._stepped_in,
            elapsed=self._now - self._opened if self._asked else 0.0,
            memory=self._memory,
            reported=self._stored,
            abandoned_in_a_row=self._abandoned,
        )
        yield f"restored round {number} with {self._asked} asked and {self._stored} stored"

    # -- the engine -------------------------------------------------------------------------------------

    def _lease(self, name: str, options: dict[str, str]) -> tuple[int, int]:
        session = self._engine.sessions.get(name)
        attempt = session.attempt if session else 1
        return int(options.get("round", self._engine.round)), int(options.get("attempt", attempt))

    def _each(self, events: Iterator[Event]) -> Iterator[str]:
        for event in events:
            yield from self._feed(event)

    def _feed(self, event: Event) -> Iterator[str]:
        for effect in self._engine.feed(event):
            yield self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> str:
        match effect:
            case Opened():
                self._asked, self._stepped_in, self._stored = effect.devices, [], []
                self._opened = self._now
                return f'opened round {effect.round} "{effect.title}": {", ".join(effect.devices)}'
            case SteppedIn():
                self._stepped_in.append(effect.devices)
                return f"stepped in, round {effect.round}: {', '.join(effect.devices)}"
            case Offer():
                what = type(effect.message).__name__
                return f"offer {effect.device}: {what}, round {effect.round}, attempt {effect.attempt}"
            case Withdraw():
                return f"withdraw {effect.device}, round {effect.round}: {effect.reason}"
            case Reduce():
                self._reducing = effect.devices
                return f"reduce round {effect.round}: {', '.join(effect.devices)}"
            case Save():
                assert isinstance(effect.state, counting.State)
                self._saved[effect.round] = effect.state
                self._asked, self._stored, self._abandoned = (), [], effect.abandoned_in_a_row
                self._memory = effect.memory
                model = effect.state.models["global"]["w"][0]
                missing = "".join(f"; missing {name}: {why}" for name, why in effect.missing.items())
                abandoned = f"; {self._abandoned} abandoned in a row" if self._abandoned else ""
                return f"save for round {effect.round}: model {model:g}{missing}{abandoned}"
            case Abandon():
                return f"abandon round {effect.round}: {effect.reason}"
            case Finished():
                return f"{'failed' if effect.failed else 'finished'}: {effect.reason}"


def _typed(options: dict[str, str]) -> dict[str, Any]:
    """Fields of RoundPolicy, as they were written."""
    kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(RoundPolicy)}
    return {name: kinds[name](value) for name, value in options.items()}
