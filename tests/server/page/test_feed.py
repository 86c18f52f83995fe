"""What viewers get: everything that is still true, and nothing twice, however fast it changes."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs starlette and uvicorn")

from fedserver.page.app import Stream
from fedserver.page.feed import Event, Feed
from fedserver.page.source import Answer
from shoal.core.errors import NotFound, Unavailable
from tests.waiting import HANG, until


class Scripted:
    """A source whose run has this many rounds, and may be away. looks: how often it was asked."""

    def __init__(self) -> None:
        self.rounds, self.away, self.looks, self.forgotten = 0, False, 0, list[str]()
        self.lock = threading.Lock()

    def look(self, run: str, have: int) -> Answer:
        self.looks += 1
        if self.away:
            raise Unavailable("no server is running")
        if run == "none":
            raise NotFound("there is no run 'none'")
        rows = [{"round": number} for number in range(have, self.rounds)]
        return Answer({"runs": []}, {"run": {"rounds": self.rounds}}, rows, min(have, self.rounds))

    def forget(self, run: str) -> None:
        self.forgotten.append(run)


Story = Callable[[Feed, Scripted], Coroutine[Any, Any, None]]


def play(story: Story) -> None:
    async def all_of_it() -> None:
        source = Scripted()
        feed = Feed(source, interval=0.001)
        asking = asyncio.create_task(feed.ask())
        try:
            await asyncio.wait_for(story(feed, source), HANG)
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

    asyncio.run(all_of_it())


async def first(events: AsyncIterator[Event], name: str) -> Any:
    """The data of the next event of this name."""
    async for event in events:
        if event.name == name:
            return json.loads(event.data)
    raise AssertionError("unreachable: a stream does not end")


def test_a_viewer_gets_the_whole_and_then_what_is_new() -> None:
    async def story(feed: Feed, source: Scripted) -> None:
        source.rounds = 3
        events = feed.follow("r")
        rounds = await first(events, "rounds")
        assert rounds == {"from": 0, "rows": [{"round": 0}, {"round": 1}, {"round": 2}]}
        source.rounds = 5
        assert await first(events, "rounds") == {"from": 3, "rows": [{"round": 3}, {"round": 4}]}

    play(story)


def test_what_has_not_changed_is_not_sent_again() -> None:
    async def story(feed: Feed, source: Scripted) -> None:
        events = feed.follow("r")
        await first(events, "rounds")
        looks = source.looks
        following = asyncio.ensure_future(anext(events))
        await until(lambda: source.looks > looks + 20)
        assert not following.done()
        source.rounds = 1
        assert (await following).name == "run"

    play(story)


def test_a_viewer_that_comes_back_goes_on_where_it_was() -> None:
    async def story(feed: Feed, source: Scripted) -> None:
        source.rounds = 4
        events = feed.follow("r")
        last = ""
        async for event in events:
            if event.name == "rounds":
                last = event.id
                break
        source.rounds = 6
        assert await first(feed.follow("r", last), "rounds") == {
            "from": 4,
            "rows": [{"round": 4}, {"round": 5}],
        }
        for foreign in ("0.2", "x", "9.9.9", "-1.-1", "9" * 30 + ".1"):
            assert (await first(feed.follow("r", foreign), "rounds"))["from"] == 0

    play(story)


def test_rounds_that_were_taken_back_are_replaced() -> None:
    async def story(feed: Feed, source: Scripted) -> None:
        source.rounds = 4
        events = feed.follow("r")
        await first(events, "rounds")
        source.rounds = 2
        assert await first(events, "rounds") == {"from": 0, "rows": [{"round": 0}, {"round": 1}]}

    play(story)


def test_a_thousand_changes_are_few_events_for_one_that_reads_late() -> None:
    async def story(feed: Feed, source: Scripted) -> None:
        events = feed.follow("r")
        await first(events, "rounds")
        fast = feed.follow("r")
        for _ in range(1000):
            source.rounds += 1
            await first(fast, "run")
        late = [await anext(events) for _ in range(2)]
        assert [event.name for event in late] == ["run", "rounds"]
        assert len(json.loads(late[1].data)["rows"]) >= 1000

    play(story)


def test_the_server_is_asked_only_while_someone_looks() -> None:
    async def story(feed: Feed, source: Scripted) -> None:
        assert source.looks == 0
        events = feed.follow("r")
        await first(events, "run")
        await events.aclose()  # type: ignore[attr-defined]
        looks = source.looks
        await until(lambda: not feed._wanted.is_set() or source.looks > looks + 1000)
        looks = source.looks
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert source.looks <= looks + 1

    play(story)


def test_a_server_that_is_away_is_reported_and_found_again() -> None:
    async def story(feed: Feed, source: Scripted) -> None:
        source.away = True
        events = feed.follow("r")
        assert (await first(events, "server"))["reachable"] is False
        source.away = False
        assert (await first(events, "server"))["reachable"] is True
        assert await first(events, "rounds") == {"from": 0, "rows": []}

    play(story)


def test_a_run_that_does_not_exist_says_so() -> None:
    async def story(feed: Feed, source: Scripted) -> None:
        assert "no run" in (await first(feed.follow("none"), "run"))["gone"]

    play(story)


def test_a_reader_that_takes_nothing_is_cut_off_and_holds_up_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedserver.page.app.STALLED", 0.05)

    async def story(feed: Feed, source: Scripted) -> None:
        places = asyncio.Semaphore(1)
        stuck, never = asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                stuck.set()
                await never.wait()

        async def receive() -> Any:
            await never.wait()

        stalled = asyncio.create_task(Stream(feed.follow("r"), places)({}, receive, send))  # type: ignore[arg-type]
        await stuck.wait()
        assert places.locked()
        source.rounds = 3
        assert (await first(feed.follow("r"), "run"))["rounds"] >= 0
        await stalled
        assert not places.locked()

    play(story)
