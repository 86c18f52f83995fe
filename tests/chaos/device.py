"""`fedclient`, unchanged, that also writes down every receipt: `python -m tests.chaos.device run ...`.

A line goes to the file RECEIPTS as soon as the receipt is off the wire, before the device acts on it. So what
is written there was acknowledged, whatever happens to the process a moment later.
"""

import json
import os
import time
from collections.abc import Awaitable, Callable

from fedclient.__main__ import main
from fedclient.net.rpc import RpcLink
from shoal.core.exchange.link import Failure, Receipt, Report

RECEIPTS = "SHOAL_CHAOS_RECEIPTS"


def line(report: Report, receipt: Receipt) -> str:
    failed = isinstance(report.result, Failure)
    blobs = [] if isinstance(report.result, Failure) else [w.blob.sha256 for w in report.result.weights()]
    seen = {
        "at": time.monotonic(),
        "run": report.run,
        "round": report.round,
        "attempt": report.attempt,
        "failed": failed,
        "blobs": blobs,
        "outcome": receipt.outcome.value,
        "reason": receipt.reason,
    }
    return json.dumps(seen) + "\n"


def recording(
    report: Callable[[RpcLink, Report], Awaitable[Receipt]],
) -> Callable[[RpcLink, Report], Awaitable[Receipt]]:
    file = os.open(os.environ[RECEIPTS], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def recorded(link: RpcLink, said: Report) -> Receipt:
        receipt = await report(link, said)
        os.write(file, line(said, receipt).encode())
        return receipt

    return recorded


if __name__ == "__main__":
    RpcLink.report = recording(RpcLink.report)  # type: ignore[method-assign, assignment]
    main(prog_name="fedclient")
