"""The working process: `python -m fedclient.work.worker`, started by `executor.py` and never by people.

Standard input carries the settings (JSON) and then tasks; standard output carries a payload "ready" or
"fault" and then a report for each task. Messages are protobuf, each preceded by its length; models go through
the folder of blobs. The process lives over many tasks, so that PyTorch is imported once, and it ends when its
input ends.

What an author's code prints goes to standard error: the pipes are moved away before that code is loaded.
"""

import json
import os
import queue
import threading
from dataclasses import asdict
from typing import BinaryIO

from fedclient.config import WorkConfig
from fedclient.faults import torch_required
from fedclient.work.pipes import TaskRunner, receive, send, take_pipes
from shoal.core.errors import ShoalError
from shoal.core.exchange.link import Report
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_to_bytes, report_to_bytes, task_from_bytes
from shoal.shell.config import convert


def main() -> None:
    source, sink = take_pipes()
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(source, messages), daemon=True).start()
    try:
        config = convert(json.loads(messages.get()), WorkConfig, "the settings")
        os.nice(config.compute.nice)
        runtime = _runtime(config)
    except ShoalError as error:
        fault = {"code": error.code, "message": error.message, "hint": error.hint}
        send(sink, payload_to_bytes(Payload("fault", {**fault, "details": getattr(error, "details", "")})))
        return
    send(sink, payload_to_bytes(Payload("ready", {"info": json.dumps(asdict(runtime.info))})))
    while True:
        task = task_from_bytes(messages.get())
        report = Report(task.run, task.round, task.attempt, runtime.perform(task))
        send(sink, report_to_bytes(report))


def _runtime(config: WorkConfig) -> TaskRunner:
    """What does the tasks: with the owner's learner, or with the graph of a run."""
    if config.learner is None:
        from fedclient.light.runtime import LightRuntime

        return LightRuntime(config)
    with torch_required():
        from fedclient.work.runtime import Runtime  # slow, for it imports PyTorch

    return Runtime.open(config)


def _pump(source: BinaryIO, messages: "queue.SimpleQueue[bytes]") -> None:
    """Read messages as they come. Once the agent is gone, no one needs this process, whatever it is doing."""
    while (message := receive(source)) is not None:
        messages.put(message)
    os._exit(0)


if __name__ == "__main__":
    main()
