"""Processes that die or stand still: the server, a device's agent, its training process, several at once."""

import asyncio
from signal import Signals
from typing import Any

from tests.chaos.kinds.kind import Kind
from tests.chaos.programs import Program
from tests.chaos.trial import Moment, Trial

KILL, TERM, STOP, CONT = Signals.SIGKILL, Signals.SIGTERM, Signals.SIGSTOP, Signals.SIGCONT


async def control(trial: Trial) -> None:
    """No fault at all: the harness itself must lose nothing."""
    await trial.begin()


async def server_kill(trial: Trial) -> None:
    """SIGKILL of the server, one to three times."""
    await trial.begin()
    for _ in range(trial.chance.randint(1, 3)):
        moment = trial.moment()
        if await trial.until(moment):
            await _kill(trial, moment, trial.fleet.server)


async def server_kill_starting(trial: Trial) -> None:
    """SIGKILL of the server, and of its next two lives while they start."""
    await trial.begin()
    moment = trial.moment()
    delays = [trial.chance.uniform(0.0, 1.5) for _ in range(2)]
    if not await trial.until(moment):
        return
    server = trial.fleet.server
    await _kill(trial, moment, server)
    for delay in delays:
        await asyncio.sleep(delay)
        await _kill(trial, None, server, delay=delay)


async def server_restart(trial: Trial) -> None:
    """An orderly restart: SIGTERM in the middle of a run."""
    await trial.begin()
    moment = trial.moment()
    if await trial.until(moment):
        strike = trial.struck("SIGTERM", ("server",), moment, cut=1)
        trial.expect("server", 0)
        life = trial.fleet.server.began
        trial.fleet.server.send(TERM)
        await trial.fleet.server.alive(after=life)
        strike.heal()


async def agent_kill(trial: Trial) -> None:
    """SIGKILL of a device's agent, one to three times."""
    await trial.begin()
    for _ in range(trial.chance.randint(1, 3)):
        device = trial.pick()
        moment = trial.moment(device.name)
        if await trial.until(moment):
            await _kill(trial, moment, device.program)


async def worker_kill(trial: Trial) -> None:
    """SIGKILL of a device's training process, as by a system that ran out of memory."""
    await trial.begin()
    device = trial.pick()
    moment = trial.moment(device.name)
    if await trial.until(moment):
        strike = trial.struck("SIGKILL of the worker", (device.name,), moment)
        device.program.send_to_children(KILL)
        strike.heal()


async def device_kill(trial: Trial) -> None:
    """SIGKILL of an agent and its training process in the same instant."""
    await trial.begin()
    device = trial.pick()
    moment = trial.moment(device.name)
    if await trial.until(moment):
        device.program.send_to_children(KILL)
        await _kill(trial, moment, device.program)


async def all_kill(trial: Trial) -> None:
    """SIGKILL of the server and of every device in the same instant, as when the power fails."""
    await trial.begin()
    moment = trial.moment()
    if await trial.until(moment):
        devices = [device.program for device in trial.fleet.devices.values()]
        for program in devices:
            program.send_to_children(KILL)
        await _kill(trial, moment, trial.fleet.server, *devices)


async def server_and_device_kill(trial: Trial) -> None:
    """SIGKILL of the server and of one device in the same instant."""
    await trial.begin()
    device = trial.pick()
    moment = trial.moment(device.name)
    if await trial.until(moment):
        device.program.send_to_children(KILL)
        await _kill(trial, moment, trial.fleet.server, device.program)


async def server_pause(trial: Trial) -> None:
    """SIGSTOP of the server, and SIGCONT after up to 20 seconds."""
    await trial.begin()
    await _pause(trial, trial.fleet.server, trial.moment())


async def device_pause(trial: Trial) -> None:
    """SIGSTOP of a device's agent, and SIGCONT after up to 20 seconds."""
    await trial.begin()
    device = trial.pick()
    await _pause(trial, device.program, trial.moment(device.name))


async def _kill(trial: Trial, moment: Moment | None, *programs: Program, **details: Any) -> None:
    """SIGKILL in one instant. The fault is over as soon as all of them are started again."""
    for program in programs:
        await program.alive()
    strike = trial.struck("SIGKILL", tuple(program.name for program in programs), moment, cut=1, **details)
    lives = [program.began for program in programs]
    for program in programs:
        trial.expect(program.name, -KILL)
        program.send(KILL)
    for program, life in zip(programs, lives, strict=True):
        await program.alive(after=life)
    strike.heal()


async def _pause(trial: Trial, program: Program, moment: Moment) -> None:
    seconds = trial.chance.choice([trial.chance.uniform(0.1, 3.0), trial.chance.uniform(3.0, 20.0)])
    if await trial.until(moment):
        strike = trial.struck("SIGSTOP", (program.name,), moment, seconds=seconds)
        program.send(STOP)
        await asyncio.sleep(seconds)
        program.send(CONT)
        strike.heal()


KINDS = (
    Kind("control", control),
    Kind("server-kill", server_kill, 8),
    Kind("server-kill-starting", server_kill_starting, 3),
    Kind("server-restart", server_restart),
    Kind("agent-kill", agent_kill, 5),
    Kind("worker-kill", worker_kill, 2),
    Kind("device-kill", device_kill, 4),
    Kind("server-and-device-kill", server_and_device_kill, 4),
    Kind("all-kill", all_kill, 3),
    Kind("server-pause", server_pause, 2),
    Kind("device-pause", device_pause, 2),
)
