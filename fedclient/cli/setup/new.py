"""`fedclient new`: a learner, a settings file and a small data set that work at once."""

import math
import random
from pathlib import Path

import click

from fedclient.cli.options import PATH
from shoal.core.errors import ConfigError
from shoal.shell import disk
from shoal.shell.console import Result, verb

SAMPLES, SEED = 240, 42
LEARNER = '''"""What this device trains: four measurements in, scores of two classes out.

Put your own network here.

Shoal reads two names in this file: build and latent.
"""

from collections import OrderedDict

from torch import nn


def build() -> nn.Module:
    hidden = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
    return nn.Sequential(OrderedDict(hidden=hidden, scores=nn.Linear(16, 2)))


latent = "hidden"  # the part whose output describes the data, as algorithms such as FLUX ask for
'''
SETTINGS = """# The settings of a device. Try them with: fedclient check --config device.yaml
learner:
  file: learner.py
data:
  csv: data.csv
  label: class              # the column of the class; leave it out for data without labels
# privacy:
#   allow_plain_weights: true   # without this line, the device asks before weights leave: fedclient consent
"""
FILES = ("learner.py", "device.yaml", "data.csv")


@click.command(epilog="Example: fedclient new attic")
@verb
@click.argument("folder", type=PATH, metavar="FOLDER")
def new(folder: Path) -> Result:
    """Create FOLDER with a learner, a device.yaml and a small data set, which work at once.

    Then replace them, one after the other, with your own. Files that exist are never changed.
    """
    present = [name for name in FILES if (folder / name).exists()]
    if present:
        raise ConfigError(f"{folder} already has {', '.join(present)}", "name another folder")
    with disk.storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(FILES, (LEARNER, SETTINGS, _data()), strict=True):
        disk.write(folder / name, text.encode())
    settings = folder / "device.yaml"
    lines = [
        f"{folder}: {', '.join(FILES)}",
        f"try them: fedclient check --config {settings}",
        f"join a server: fedclient join - --config {settings}",
        f"take part: fedclient run --config {settings}",
    ]
    return Result({"folder": str(folder), "files": list(FILES)}, "\n".join(lines))


def _data() -> str:
    """Two classes of points around two centers, the same at every call."""
    chance = random.Random(SEED)
    lines = ["length,width,height,weight,class"]
    for number in range(SAMPLES):
        label = number % 2
        center = math.copysign(1.0, label - 0.5)
        values = (chance.gauss(center, 1.0) for _ in range(4))
        lines.append(f"{','.join(f'{value:.3f}' for value in values)},{label}")
    return "\n".join(lines) + "\n"
