"""Rules about an algorithm's card and its two halves, which take no run."""

import subprocess
import sys
from dataclasses import replace

from shoal.checks.subject import Broken, Subject, expect
from shoal.core.algorithm.card import check_rules
from shoal.core.errors import ConfigError


def states_its_parts(subject: Subject) -> None:
    """The card has a legal name, frozen parameters, both halves, and the type of its state."""
    check_rules(subject.card)
    subject.card.state_type()
    subject.card.device()


def configures(subject: Subject) -> None:
    """Every preset can be configured, and a wrong name or type is refused by name."""
    card = subject.card
    for preset in card.presets:
        expect(
            card.configure(preset) == replace(card.parameters(), **card.preset(preset)),
            f"preset {preset} does not configure to what it says",
        )
    for name, value in (("roundz", 3), *((each, object()) for each in list(card.settings)[:1])):
        try:
            card.configure("default", {name: value})
        except ConfigError as fault:
            expect(name in fault.message, f"the refusal of {name} does not name it: {fault.message}")
        else:
            raise Broken(f"{name}={value!r} is accepted")


def stays_on_its_floor(subject: Subject) -> None:
    """The server half does not import PyTorch, the device half neither scikit-learn nor SciPy."""
    for half, forbidden in (
        (subject.card.server_module, ["torch"]),
        (subject.card.device_module, ["sklearn", "scipy", "kneed"]),
    ):
        if not isinstance(half, str):
            continue
        code = f"import sys, {half}; print([name for name in {forbidden} if name in sys.modules])"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
        expect(found.returncode == 0, f"{half} cannot be imported by itself: {found.stderr[-500:]}")
        expect(found.stdout.strip() == "[]", f"{half} imports {found.stdout.strip()}")
