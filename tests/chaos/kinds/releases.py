"""Crash points of a release with a guarantee: a device's training process dies over it, in a private run."""

from fedclient.store.ledger import Ledger
from shoal.core.privacy.ledger.entries import Debit, Release, chosen
from shoal.shell.crash import POINTS as ALL
from shoal.shell.crash import VARIABLE
from tests.chaos import work
from tests.chaos.fleet import Device
from tests.chaos.kinds.kind import Kind
from tests.chaos.trial import Trial

POINTS = {"device.debited", "device.drawn", "device.release-stored", "device.release-noted"}
DIED = b"the training process was ended by SIGKILL"
"""How a device's log says so. Its task has failed then, and the round is done again."""


def at(point: str) -> Kind:
    async def strike(trial: Trial) -> None:
        trial.algorithm, device = "flux-private", trial.pick()
        paid, kept = _entries(device)
        log = device.program.log
        deaths = log.read_bytes().count(DIED)
        trial.expect(device.name, 0)
        await device.program.restart({VARIABLE: point})
        await trial.begin()
        await trial.until_over(lambda: log.read_bytes().count(DIED) > deaths)
        if not trial.over.is_set():
            strike = trial.struck(point, (device.name,))
            await device.program.restart()
            strike.heal()
        await trial.over.wait()
        _look_at(trial, device, paid, kept, log.read_bytes().count(DIED) - deaths)

    strike.__doc__ = f"SIGKILL of a training process where {ALL[point]}."
    return Kind(f"crash:{point}", strike)


def _look_at(trial: Trial, device: Device, paid: int, kept: int, deaths: int) -> None:
    """A release of this run for the one that counted, and a debit for each that a death may have cost."""
    debits, releases = _entries(device)
    if releases != kept + 1 or not 1 <= debits - paid <= deaths + 1:
        what = f"{debits - paid} debits and {releases - kept} releases after {deaths} deaths"
        trial.wrong.append(f"the ledger of {device.name} has {what}")


def _entries(device: Device) -> tuple[int, int]:
    """Debits and releases in a ledger that is whole. Raises LedgerFault where it is not."""
    entries = Ledger(device.ledger, work.BUDGET).verify()
    return len(chosen(entries, Debit)), len(chosen(entries, Release))


KINDS = tuple(at(point) for point in ALL if point in POINTS)
