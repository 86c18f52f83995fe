"""A server and its devices on a real disk that is full for a while: `python -m tests.crash.full_disk FOLDER`.

The folder must be an empty one on a small file system: see `test_full_disk`.
"""

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from tests.crash import lab
from tests.server import servers
from tests.server.toys import MODEL
from tests.waiting import HANG, until

JUNK = "junk"


def fill(folder: Path) -> None:
    """Leave not one byte."""
    with (folder / JUNK).open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


async def story(root: Path) -> dict[str, Any]:
    servers.SETTINGS = servers.Settings(poll=1.0, heartbeat=0.1, tick=0.05, model=1 << 20, low_water=0)
    async with servers.server(root / "server") as coordinator:
        await servers.start(coordinator, MODEL)
        doing = [""] * servers.DEVICES

        def does(number: int, text: str) -> None:
            if "round 2 of" in text and not any("round 2 of" in earlier for earlier in doing):
                fill(root)
            doing[number] = text

        playing = asyncio.gather(
            *(lab.device(coordinator, root, n, partial(does, n)) for n in range(servers.DEVICES))
        )
        await until(lambda: (root / JUNK).exists())
        notices = await filled(coordinator, root, doing)
        assert not playing.done()
        (root / JUNK).unlink()
        await playing
        same = lab.same_models(servers.models(coordinator), lab.expected())
        return {"same": same, "notices": notices, "standing": coordinator.runs["toy"].standing.value}


async def filled(coordinator: Coordinator, root: Path, doing: list[str]) -> list[str]:
    """Keep the disk full, also of what the reserve gives up, until the server says so and no device goes on;
    what the operator sees then. A device whose result found room in the reserve waits for its next task."""
    while True:
        fill(root)
        await asyncio.sleep(0.02)
        notices = list((await OperatorApi(coordinator).status()).notices)
        if any("disk" in notice for notice in notices) and all(text.startswith("waiting") for text in doing):
            return notices


if __name__ == "__main__":
    os.environ.pop("SHOAL_CRASH_AT", None)
    print(json.dumps(asyncio.run(asyncio.wait_for(story(Path(sys.argv[1])), HANG))))
