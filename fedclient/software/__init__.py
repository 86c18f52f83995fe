"""Releases that a device whose owner allows it takes by itself, tries, and leaves again if they fail."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedclient.config import ClientConfig

if TYPE_CHECKING:
    from fedclient.software.updates import Updates


def updates_of(settings: ClientConfig, say: Callable[[str], None]) -> "Updates | None":
    """None if the owner does not allow updates; then nothing of this package is loaded."""
    if settings.updates is None:
        return None
    from fedclient.software.folder import folder_of
    from fedclient.software.updates import Updates

    folder = folder_of(settings)
    assert folder is not None
    return Updates(settings, folder, say)
