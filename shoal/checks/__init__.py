"""What every algorithm must keep, whatever it does: `shoal.check` for people, `tests/checks` for ours.

Each rule runs the algorithm on a small real fleet, rotated digits on six devices, and raises `Broken`, which
says in words what the algorithm did instead. `verdict.RULES` names them all.
"""

from shoal.checks.subject import Broken, Subject
from shoal.checks.verdict import RULES, Verdict, check

__all__ = ["RULES", "Broken", "Subject", "Verdict", "check"]
