"""One flipped bit at a time, in everything that a server stores, while it works and while it is down.

    python -m tests.crash.rot --flips 1000 --seed 42        a campaign, with a table
    python -m tests.crash.rot --flips 1 --seed 57           one trial again

In each trial a run is played up to a random report. Then one bit of one file is flipped, in place or in the
folder as a kill -9 leaves it, and the run is played to its end; whenever the server ends by itself it is
started again, as a supervisor does. What must hold: the server starts, the run finishes with the models of a
run without faults, and every row that nothing may change is as it was.
"""

import argparse
import asyncio
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest.mock import patch

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.content import checked
from fedserver.store.identities.records import Successor, Terms
from fedserver.store.integrity import salvage
from fedserver.store.records import Standing
from fedserver.store.store import Store
from shoal.core.errors import BadPayload, ShoalError
from shoal.core.exchange.link import Failure, Idle, Report, Task
from shoal.core.identity.joining import Role
from tests.quiet import quiet
from tests.server.servers import DEVICES, SETTINGS, crash, expected, hands, models, start, until_recovered
from tests.server.toys import Hands, honest, same_models
from tests.waiting import HANG

REPORTS = 3 * DEVICES
"""Reports of training in the run."""
LIVES = 6
"""How often a server is started in a trial at most."""
KEPT = (
    "meta",
    "epoch",
    "audit",
    "tokens",
    "identities",
    "successors",
    "dead_keys",
    "released",
    "timeline",
    "log",
)
"""Tables whose rows are never changed or deleted in these trials."""
BLOBS = ("model", "older model", "report", "copy of a model")
FILES = {"database": "shoal.db", "database copy": "shoal.db.copy", "log of the database": "shoal.db-wal"}


@dataclass
class Seen:
    """What came of a trial. flipped: where. noticed: what the server said about it, in the end."""

    seed: int
    kind: str
    up: bool
    flipped: str = ""
    starts: int = 0
    noticed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def kinds(tables: list[str]) -> list[str]:
    return [*BLOBS, *FILES, *(f"table {table}" for table in tables)]


def flip(path: Path, at: int, bit: int) -> str:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))
    return f"{path.name}: byte {at}, bit {bit}"


def copied(state: Path, to: Path) -> None:
    """Copy the folder of a server that is up. On its store's thread, nothing is written to the database
    meanwhile; what another thread deletes before it was copied was deleted before the kill."""

    def copy(source: str, target: str) -> None:
        with suppress(FileNotFoundError):
            shutil.copy2(source, target)

    left_out = shutil.ignore_patterns("*-shm", "lock", "*.sock")
    shutil.copytree(state, to, ignore=left_out, copy_function=copy)


class Trial:
    def __init__(self, seed: int, kind: str, base: Path) -> None:
        self.chance = Random(f"rot {seed}")
        self.up, self.on_disk = self.chance.random() < 0.5, self.chance.random() < 0.5
        self.seen = Seen(seed, kind, self.up)
        self.state, self._base = base / "state", base
        self._before: dict[str, set[tuple[object, ...]]] = {}

    async def play(self) -> Seen:
        """All of the trial. In half of them the models are never in memory, as large ones are not."""
        with patch.object(checked, "MIN_BYTES", 0 if self.on_disk else checked.MIN_BYTES):
            return await self._all()

    async def _all(self) -> Seen:
        first = await self._open()
        assert first is not None
        await start(first)
        await self._play(first, self.chance.randrange(REPORTS))
        await first.caretaker.copy()
        if not self.up:
            # What a kill -9 leaves: without the orderly end of a connection, which would empty the log.
            killed = self._base / "killed"
            await first.storage.call(copied, self.state, killed)
            self.state = killed
        try:
            self._flip(first)
            if self.up:
                await self._go_on(first)
        finally:
            await crash(first) if not first.closed else None
        if not self._finished:
            await self._restart_until_over()
        self._look()
        return self.seen

    # -- the server ---------------------------------------------------------------------------------------

    _finished = False

    async def _open(self) -> Coordinator | None:
        self.seen.starts += 1
        try:
            coordinator = await Coordinator.open(self.state, SETTINGS)
        except Exception as error:
            self.seen.problems.append(f"the server does not start: {type(error).__name__}: {error}")
            return None
        await until_recovered(coordinator)
        return coordinator

    async def _restart_until_over(self) -> None:
        while not self._finished and self.seen.starts < LIVES:
            coordinator = await self._open()
            if coordinator is None:
                return
            try:
                if "toy" not in coordinator.runs:
                    lost = coordinator.recovery.unreadable.get("toy", (None, "it is gone"))[1]
                    self.seen.problems.append(f"the run is lost: {lost}")
                    return
                await self._go_on(coordinator)
            finally:
                await crash(coordinator)
        if not self._finished:
            self.seen.problems.append(f"the run is not over after {LIVES} starts")

    async def _go_on(self, coordinator: Coordinator) -> None:
        """Play the run to its end, or until the server has to be started again."""
        self.seen.noticed += coordinator.storage.repaired
        try:
            if self.chance.random() < 0.5:
                await coordinator.caretaker.check()
            await self._play(coordinator, 10 * REPORTS)
            await OperatorApi(coordinator).status()
        except ShoalError as error:
            self.seen.noticed.append(str(error))
            return
        self.seen.noticed += coordinator.storage.repaired
        run = coordinator.runs["toy"]
        if run.active:
            self.seen.noticed.append("the run was not over when the devices had nothing to do")
            return
        self._finished = True
        if run.standing is not Standing.FINISHED:
            self.seen.problems.append(f"the run has {run.standing.value}: {run.reason}")
        elif not same_models(models(coordinator), expected()):
            self.seen.problems.append("a SILENT difference: the models are others")

    async def _play(self, coordinator: Coordinator, reports: int) -> None:
        """At most this many reports of the devices, one after another."""
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        until, done, number = time.monotonic() + HANG, 0, 0
        while done < reports and coordinator.runs["toy"].active and time.monotonic() < until:
            if coordinator.broken.done():
                raise ShoalError(f"the server has ended: {coordinator.broken.result()}")
            number = (number + 1) % DEVICES
            task = await devices[number].link.next_task(0.05)
            if isinstance(task, Idle):
                continue
            await self._work(devices[number], task, number)
            done += 1

    async def _work(self, device: Hands, task: Task, number: int) -> None:
        try:
            await device.do(task, honest(number))
        except AssertionError:  # the bytes are wrong: what an agent says then
            failure = Failure(BadPayload.code, "the bytes do not match their hash")
            await device.link.report(Report(task.run, task.round, task.attempt, failure))

    # -- the flip -----------------------------------------------------------------------------------------

    def _flip(self, coordinator: Coordinator) -> None:
        self._before = self._rows()
        kind = self.seen.kind
        path, at = self._place(kind)
        if path is None:
            self.seen.flipped = "nothing: there was no such file"
            return
        self.seen.flipped = flip(path, at, self.chance.randrange(8))

    def _place(self, kind: str) -> tuple[Path | None, int]:
        chance = self.chance
        if kind.startswith("table "):
            return self.state / "shoal.db", self._in_table(kind.removeprefix("table "))
        paths = [self.state / FILES[kind]] if kind in FILES else self._blobs(kind)
        paths = [path for path in paths if path.exists() and path.stat().st_size]
        if not paths:
            return None, 0
        path = chance.choice(paths)
        return path, chance.randrange(path.stat().st_size)

    def _blobs(self, kind: str) -> list[Path]:
        if kind == "copy of a model":
            return sorted((self.state / "copies").glob("??/*"))
        newest, of = "(SELECT max(round) FROM checkpoints)", "SELECT sha256 FROM checkpoint_blobs WHERE round"
        queries = {
            "model": f"{of} = {newest}",
            "older model": f"{of} < {newest}",
            "report": "SELECT sha256 FROM report_blobs",
        }
        with closing(sqlite3.connect(self.state / "shoal.db")) as database:
            names = sorted({name for (name,) in database.execute(queries[kind])})
        return [self.state / "blobs" / name[:2] / name for name in names]

    def _in_table(self, table: str) -> int:
        """The place of a byte of a value of a random row of a table, or of an index of it."""
        with closing(sqlite3.connect(self.state / "shoal.db")) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            rows = database.execute(f"SELECT * FROM {table}").fetchall()
        data = (self.state / "shoal.db").read_bytes()
        values = [
            value.encode() if isinstance(value, str) else value
            for value in (self.chance.choice(rows) if rows else ())
            if isinstance(value, str | bytes) and len(value) >= 3
        ]
        for value in self.chance.sample(values, len(values)):
            places, found = [], data.find(value[:64])
            while found >= 0:
                places.append(found)
                found = data.find(value[:64], found + 1)
            if places:
                return self.chance.choice(places) + self.chance.randrange(min(64, len(value)))
        return self.chance.randrange(len(data))

    # -- what must hold -----------------------------------------------------------------------------------

    def _rows(self) -> dict[str, set[tuple[object, ...]]]:
        with closing(sqlite3.connect(self.state / "shoal.db")) as database:
            return {table: set(database.execute(f"SELECT * FROM {table}")) for table in KEPT}

    def _look(self) -> None:
        """The folder at the end."""
        if self.seen.problems:
            return
        try:
            store = Store(self.state)
        except Exception as error:
            self.seen.problems.append(f"the folder cannot be opened at the end: {error}")
            return
        self.seen.noticed += store.database.repaired
        found = salvage.damaged(store.database.connection)
        store.close()
        if found:
            self.seen.problems.append(f"rows are damaged at the end: {found}")
        after = self._rows()
        again = any("is lost" in each or "went back" in each for each in self.seen.noticed)
        for table, rows in self._before.items():
            lost = rows - after[table]
            if lost and not (table == "timeline" and again):
                some = sorted(map(str, lost))[:2]
                self.seen.problems.append(f"a SILENT difference: {table}: {some}")


UNUSED = ("doubts", "placements", "newcomers", "released_before", "removed", "watched", "answered")
"""Tables that have no rows in these trials."""


def prepared(base: Path) -> list[str]:
    """A state folder with a token and a device. Returns the tables whose rows are flipped."""
    with closing(Store(base / "state")) as store:
        token, _ = store.identities.tokens.add(Terms(Role.TRAIN, uses=5, ttl=3600.0))
        device = ("d0", "train", "{}", "approved", 1.0, "aaaa", token.token)
        with store.database.transaction():
            store.database.execute(f"INSERT INTO identities VALUES ({', '.join('?' * len(device))})", device)
            store.identities.registry.await_approval("d0", Successor("bbbb", Role.TRAIN, {}, "", 1.0))
            store.identities.dead.add("cccc", "d0")
        return [each for each in salvage.tables(store.database.connection) if each not in UNUSED]


def campaign(flips: int, seed: int, say: Callable[[str], None] = print) -> list[Seen]:
    """This many trials, the kinds in turn; trial i has the seed `seed` + i."""
    shm = Path("/dev/shm")
    with (
        quiet(),
        tempfile.TemporaryDirectory(prefix="shoal-rot-", dir=shm if shm.is_dir() else None) as folder,
    ):
        made = Path(folder, "made")
        made.mkdir()
        every = kinds(prepared(made))
        found = []
        for number in range(seed, seed + flips):
            base = Path(folder, "trial")
            shutil.copytree(made, base)
            trial = Trial(number, every[number % len(every)], base)
            try:
                asyncio.run(trial.play())
            except Exception:
                trial.seen.problems.append(traceback.format_exc())
            shutil.rmtree(base)
            found.append(trial.seen)
            for problem in trial.seen.problems:
                when = ("up" if trial.up else "killed") + (", models on disk" if trial.on_disk else "")
                say(f"FAILED {trial.seen.kind} ({when}), {trial.seen.flipped}: {problem}")
                say(f"       again: python -m tests.crash.rot --flips 1 --seed {number}")
        return found


def table(found: list[Seen]) -> str:
    """One line for each kind."""
    lines = [("what", "flips", "up", "noticed", "starts", "silent", "lost", "not started")]
    for kind in [*dict.fromkeys(each.kind for each in found), "all"]:
        own = [each for each in found if kind in (each.kind, "all")]
        problems = Counter(
            "silent" if "SILENT" in text else "not started" if "not start" in text else "lost"
            for each in own
            for text in each.problems
        )
        counts = (
            len(own),
            sum(each.up for each in own),
            sum(bool(each.noticed) for each in own),
            sum(each.starts for each in own),
            *(problems[name] for name in ("silent", "lost", "not started")),
        )
        lines.append((kind, *map(str, counts)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.rot", description="Flip one bit at a time.")
    parser.add_argument("--flips", type=int, default=1000, help="how many trials  [default: 1000]")
    parser.add_argument("--seed", type=int, default=42, help="of the first trial  [default: 42]")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = campaign(arguments.flips, arguments.seed)
    print(table(found))
    if arguments.flips == 1:
        print(found[0])
    print(
        f"{len(found)} flips, seeds {arguments.seed} to {arguments.seed + len(found) - 1}; "
        f"{sum(bool(each.problems) for each in found)} failed; {time.monotonic() - began:.0f} s"
    )
    return 1 if any(each.problems for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
