"""SECURITY.md speaks of every call that peers can make, and the tests that it names are there."""

import re
from pathlib import Path

from fedserver.authority.permissions import ALLOWED
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "SECURITY.md").read_text()
AUTHORITY = ROOT / "tests" / "server" / "authority"


def test_every_call_has_a_row() -> None:
    calls = [method.split(".")[-1].replace("/", ".") for method in ALLOWED]
    enrolment = enrollment_service_pb2.DESCRIPTOR.services_by_name["EnrollmentService"]
    calls += [method.name for method in enrolment.methods]
    rows = "".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    assert not [call for call in calls if f"`{call}`" not in rows]


def test_the_tests_that_are_named_are_there() -> None:
    named = re.findall(r"`([\w/]*\.py)?(?:::(\w+))?`", PAGE)
    file = AUTHORITY
    tests = 0
    for path, test in named:
        if path and "test_" in path:
            file = ROOT / path if "/" in path else AUTHORITY / path
            file = file if file.exists() else ROOT / "tests" / "core" / "server_kit" / path
            assert file.is_file(), path
        if test:
            tests += 1
            assert re.search(rf"def {test}\(", file.read_text()), f"{file}::{test}"
    assert tests > 30
