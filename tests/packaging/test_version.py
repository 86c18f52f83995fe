"""Every file that states the version of this project states the same."""

import re
from pathlib import Path

import shoal
import shoal_lab

ROOT = Path(__file__).resolve().parents[2]


def test_one_version_everywhere() -> None:
    """What is built reads `shoal.__version__`; these cannot."""
    for path in ("CITATION.cff", "deploy/helm/shoal/Chart.yaml"):
        assert re.findall(r"(?m)^version: (\S+)$", (ROOT / path).read_text()) == [shoal.__version__], path
    assert shoal_lab.__version__ == shoal.__version__
