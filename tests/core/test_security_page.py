"""SECURITY.md speaks of every call that peers can make, and the tests that it names are there."""

import re
from pathlib import Path

from fedserver.authority.permissions import ALLOWED
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2
from shoal.core.identity.joining import Role

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "SECURITY.md").read_text()
AUTHORITY = ROOT / "tests" / "server" / "authority"


EVERYONE = ", ".join(role.value for role in Role)


def test_every_call_has_a_row() -> None:
    calls = [method.split(".")[-1].replace("/", ".") for method in ALLOWED]
    enrolment = enrollment_service_pb2.DESCRIPTOR.services_by_name["EnrollmentService"]
    calls += [method.name for method in enrolment.methods]
    rows = "".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    assert not [call for call in calls if f"`{call}`" not in rows]


def test_the_roles_in_the_table_are_those_of_the_contract() -> None:
    """The contract says it once, as the option `allowed` of each method; the page has to say the same."""
    page = {
        call: roles.strip()
        for line in PAGE.splitlines()
        if re.match(r"\| `\w+\.\w+`", line)
        for calls, roles in [line.split("|")[1:3]]
        for call in re.findall(r"`(\w+\.\w+)`", calls)
    }
    for method, roles in ALLOWED.items():
        call = method.split(".")[-1].replace("/", ".")
        named = ", ".join(role.value for role in Role if role in roles)
        expected = {EVERYONE: "all", "": page[call]}.get(named, named)
        assert page[call] == expected, call
        assert bool(roles) == (page[call] != "none"), call


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
