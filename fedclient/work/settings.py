"""The settings of a working process, from those of the device; without gRPC, which some verbs do not need."""

from dataclasses import replace
from pathlib import Path

from fedclient.config import ClientConfig, SelfCheck, WorkConfig
from fedclient.store.consent import Consents
from fedclient.store.ledger import Ledger
from fedclient.store.state import DeviceFolder
from fedclient.work.data import source_of
from shoal.core.errors import ConfigError


def work_config(
    settings: ClientConfig,
    file: Path | None = None,
    labels: bool = True,
    selfcheck: SelfCheck = "none",
    joined: bool = True,
) -> WorkConfig:
    """The settings of the working process. Raises ConfigError if the data are missing."""
    if settings.data is None and file is None:
        raise ConfigError("no data are given", "set `data`, for example data: {npz: train.npz}")
    folder, compute = DeviceFolder(settings.state), settings.compute
    return WorkConfig(
        folder.blobs,
        settings.account,
        settings.learner,
        settings.data,
        file,
        labels,
        compute,
        settings.privacy.towards(joined),
        folder.root / "consent",
        selfcheck,
        identity=folder.identity if joined else None,
        memory_bytes=settings.limits.memory_bytes,
    )


def light_config(settings: ClientConfig, file: Path | None, blobs: Path, account: Path) -> WorkConfig:
    """The settings of a process that only predicts, with the graph of a run. Nothing of it leaves the device,
    so its ledger may be any folder."""
    work = work_config(settings, file, labels=False)
    return replace(work, learner=None, blobs=blobs, account=account, consent=None)


def ledger_of(config: WorkConfig) -> Ledger:
    """The ledger of a working process, which pays for what its tasks release."""
    consents = Consents(config.consent) if config.consent else None
    return Ledger(config.account, config.privacy, source_of(config), consents=consents)
