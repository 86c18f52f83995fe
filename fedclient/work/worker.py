"""The training process: `python -m fedclient.work.worker`, started by `performer.py` and never by people.

Its standard input brings the settings (JSON), then tasks; its standard output takes a payload "ready" or
"fault", then a report for each task. Both are protobuf behind a length; models go through the folder of
blobs. It lives over many tasks, so that PyTorch is imported once, and it ends when its input does.

What an author's code prints goes to standard error: the real pipes are taken away before it is loaded.
"""

import json
import os
import queue
import sys
import threading
from dataclasses import asdict
from typing import BinaryIO

from fedclient.config import WorkConfig
from fedclient.work.framing import LENGTH, framed, length_of
from shoal.core.errors import ShoalError
from shoal.core.exchange.link import Report
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_to_bytes, report_to_bytes, task_from_bytes
from shoal.shell.config import convert


def main() -> None:
    source, sink = _take_pipes()
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(source, frames), daemon=True).start()
    from fedclient.work.runtime import Runtime  # slow: it brings PyTorch

    try:
        config = convert(json.loads(frames.get()), WorkConfig, "the settings")
        os.nice(config.compute.nice)
        workshop = Runtime.open(config)
    except ShoalError as error:
        fault = {"code": error.code, "message": error.message, "hint": error.hint}
        _put(sink, payload_to_bytes(Payload("fault", {**fault, "details": getattr(error, "details", "")})))
        return
    _put(sink, payload_to_bytes(Payload("ready", {"facts": json.dumps(asdict(workshop.facts))})))
    while True:
        task = task_from_bytes(frames.get())
        report = Report(task.run, task.round, task.attempt, workshop.perform(task))
        _put(sink, report_to_bytes(report))


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the agent. After this, standard input is empty and standard output is standard error."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return source, sink


def _pump(source: BinaryIO, frames: "queue.SimpleQueue[bytes]") -> None:
    """Read messages as they come. When the agent is gone nobody needs this process, whatever it does."""
    while len(header := source.read(LENGTH)) == LENGTH:
        frames.put(source.read(length_of(header)))
    os._exit(0)


def _put(sink: BinaryIO, data: bytes) -> None:
    sink.write(framed(data))
    sink.flush()


if __name__ == "__main__":
    main()
