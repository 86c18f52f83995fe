"""What it costs to withdraw a device, and what the models are worth afterwards.

Twelve devices in two groups (digits, upright and turned by 90 degrees) train FLUX whose clusters share
nothing, and a thirteenth joins when the clusters have formed (late) or takes part from the beginning (early).
It is then withdrawn. The late one's run goes back to its last version without it, and goes on; the early
one's run, of which no such version is stored, is started again. Accuracies are means over the other twelve.

    python -m benchmarks.withdrawal --seeds 47 48 49 50 51
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.runs import Run
from shoal.core.algorithms.flux import ALGORITHM
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.tensors import digest
from tests.fleet import first_model, fleet
from tests.server.authority.peers import World, world
from tests.server.servers import start
from tests.server.toys import serve
from tests.waiting import until

DEVICES, LAST = 12, "d12"
PARAMETERS = {
    "rounds": 7,
    "epochs": 2,
    "learning_rate": 0.1,
    "batch_size": 16,
    "inputs": "raw",
    "privacy": "off",
    "warm_up": "rounds",
    "classes": 10,
    "pooling": 0.0,
    "aggregation": "mean",
}


async def played(seed: int, which: str) -> dict[str, Any]:
    """One withdrawal, of the device that is late or early."""
    with tempfile.TemporaryDirectory() as folder:
        async with world(Path(folder) / "server") as found:
            run = await begun(found, "run", seed)
            others = [f"d{number}" for number in range(DEVICES)]
            await served(
                found, run, [*others, LAST] if which == "early" else others, LAST if which == "late" else ""
            )
            before, accuracy = models_of(run), mean_of(run)
            (price,) = (await found.api.withdraw(LAST, "", False, ())).runs
            await found.api.withdraw(LAST, "", True, ("run",) if price.back_to else ())
            run = found.coordinator.runs["run"] if price.back_to else await begun(found, "again", seed)
            asked = run.engine.state.progress
            await served(found, run, others)
            repeated = run.engine.state.progress - asked
            never = await begun(found, "never", seed)
            await served(found, never, others)
            kept = [key for key in price.without_it if before[key] == models_of(never)[key]]
            return {
                "with it": len(price.with_it),
                "without it": len(price.without_it),
                "of these as if it had never come, bit by bit": len(kept),
                "rounds as stated": price.rounds,
                "rounds repeated": repeated,
                "devices as stated": price.devices,
                "accuracy before": accuracy,
                "accuracy after": mean_of(run),
                "accuracy of a run without it": mean_of(never),
            }


async def begun(found: World, name: str, seed: int) -> Run:
    for device in (*(f"d{number}" for number in range(DEVICES)), LAST):
        if device not in {each.device for each in await found.api.devices()}:
            await found.device(device)
    policy = RoundPolicy(minimum=DEVICES)
    await start(
        found.coordinator,
        first_model(),
        name=name,
        algorithm="flux",
        parameters=PARAMETERS,
        policy=policy,
        seed=seed,
    )
    return found.coordinator.runs[name]


async def served(found: World, run: Run, names: list[str], late: str = "") -> None:
    """These devices work until the run is over; rounds open once all are there."""
    answers, run.held = fleet(ALGORITHM, DEVICES + 1), True
    serving = [
        asyncio.create_task(serve(DeviceApi(found.coordinator, name), answers[name])) for name in names
    ]
    await until(lambda: all(map(run.present, names)))
    run.held = False
    if late:
        await until(lambda: getattr(run.engine.state, "clustering", None) is not None)
        serving.append(asyncio.create_task(serve(DeviceApi(found.coordinator, late), answers[late])))
    await asyncio.gather(*serving)


def models_of(run: Run) -> dict[str, str]:
    return {key: digest(model) for key, model in run.engine.state.models.items()}


def mean_of(run: Run) -> float:
    measured = [one.accuracy for device, one in run.engine.state.metrics.items() if device != LAST]
    return statistics.fmean(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[47, 48, 49, 50, 51])
    for which in ("late", "early"):
        found = [asyncio.run(played(seed, which)) for seed in parser.parse_args().seeds]
        print(json.dumps({which: {key: [each[key] for each in found] for key in found[0]}}, indent=2))


if __name__ == "__main__":
    main()
