"""Over real TLS: what operators may call over the network, and what the audit log says of them."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from fedserver.authority.issuing import Key
from fedserver.authority.permissions import NEEDED
from fedserver.coordinator.coordinator import Coordinator
from fedserver.rpc.admission.connections import MAX_REFUSED
from fedserver.store.identities.audit import ACTING, Event
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.exchange._pb.fed.v1 import authority_service_pb2 as authority_pb
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blob_pb
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1 import release_service_pb2 as release_pb
from shoal.core.exchange._pb.fed.v1.authority_service_pb2_grpc import AuthorityServiceStub
from shoal.core.exchange._pb.fed.v1.operator_service_pb2_grpc import OperatorServiceStub
from shoal.core.identity.certificates import new_key, request
from shoal.core.identity.joining import OperatorRole
from tests.server.authority.peers import World, channel_of, lines_of, play, refused
from tests.server.servers import scenario, serve_all, start
from tests.waiting import HANG

SERVICES = (
    pb.DESCRIPTOR.services_by_name["OperatorService"],
    authority_pb.DESCRIPTOR.services_by_name["AuthorityService"],
    blob_pb.DESCRIPTOR.services_by_name["BlobService"],
    release_pb.DESCRIPTOR.services_by_name["ReleaseService"],
)
CALLS = [f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods]
"""Every call that operators are served, as the contract has them."""
ROTATE = "/fed.v1.AuthorityService/RotateAuthority"
CALLS.append(CALLS.pop(CALLS.index(ROTATE)))  # the last, since no certificate gets through TLS after it


@dataclass
class Person:
    """An operator's hands."""

    name: str
    key: Key
    certificate: bytes
    authority: bytes
    address: str

    def channel(self, address: str = "") -> aio.Channel:
        return channel_of(address or self.address, self.authority, self.key, self.certificate)


async def person(found: World, name: str, role: OperatorRole = OperatorRole.OPERATOR) -> Person:
    """Someone with a certificate that was issued now."""
    key = new_key()
    issued = await found.api.operators.add(name, role, request(key))
    return Person(name, key, issued.certificate, issued.authority, issued.address)


@asynccontextmanager
async def operator(of: Person) -> AsyncIterator[Any]:
    async with of.channel() as channel:
        yield OperatorServiceStub(channel)


async def said(of: Person, methods: list[str], address: str = "") -> dict[str, str]:
    """What is said to an empty request of each call. A connection that is only refused is closed early."""
    answers = {}
    for begin in range(0, len(methods), MAX_REFUSED - 1):
        async with of.channel(address) as channel:
            for method in methods[begin : begin + MAX_REFUSED - 1]:
                try:
                    await channel.unary_unary(method)(b"", timeout=HANG)
                    answers[method] = "OK"
                except aio.AioRpcError as error:
                    answers[method] = f"{error.code().name} {error.details()}"
    return answers


def test_every_call_is_refused_to_every_operator_whose_role_does_not_suffice(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        refusals = Counter[str]()
        for role in OperatorRole:
            someone = await person(found, role.value, role)
            for method, answer in (await said(someone, CALLS)).items():
                needed = NEEDED[method]
                if needed is None:
                    assert answer.endswith("cannot be called over the network"), (role, method, answer)
                elif not role.suffices(needed):
                    assert f"PERMISSION_DENIED an operator with the role {role.value} may not" in answer
                else:
                    assert "may not call" not in answer, (role, method, answer)
                    continue
                refusals[role.value] += 1
        denied = Counter(line["facts"]["operator"] for line in lines_of(found.state, Event.DENIED))
        assert denied == refusals
        assert refusals["viewer"] > refusals["operator"] > 0
        made = lines_of(found.state, Event.TOKEN_CREATED)  # an empty request is a token's default
        assert [line["facts"]["operator"] for line in made] == ["operator"]

    play(story, tmp_path / "s")


def test_what_a_viewer_may_call_reads_and_nothing_else() -> None:
    viewers = {
        method.rpartition("/")[2] for method, needed in NEEDED.items() if needed is OperatorRole.VIEWER
    }
    assert viewers
    assert all(name.startswith(("List", "Get", "Read", "Watch")) for name in viewers)
    assert set(CALLS) == set(NEEDED)
    for name in ("AddOperator", "ListOperators", "RevokeOperator"):  # or a stolen key could make others
        assert NEEDED[f"/fed.v1.AuthorityService/{name}"] is None


def test_neither_port_takes_the_certificates_of_the_other(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device, someone = await found.device("d0"), await person(found, "anna")
        assert device.issued is not None
        stranger = Person("d0", device.key, device.issued.certificate, device.issued.authority, "")
        there = found.api.operators.address
        for answer in (await said(stranger, CALLS[:8], there)).values():
            assert answer.startswith("UNAUTHENTICATED no operator d0 of federation clinic"), answer
        calls = ["/fed.v1.DeviceService/Hello", "/fed.v1.BlobService/Fetch"]
        for answer in (await said(someone, calls, found.listeners.address)).values():
            assert answer.startswith("UNAUTHENTICATED no device anna of federation clinic"), answer

    play(story, tmp_path / "s")


def test_the_audit_log_names_who_called_over_the_network_and_no_one_else(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        anna, bert = await person(found, "anna"), await person(found, "bert")
        await start(found.coordinator)
        async with operator(anna) as stub:
            await stub.PauseRun(pb.PauseRunRequest(run="toy", reason="lunch"))
        async with operator(bert) as stub:
            await stub.ResumeRun(pb.ResumeRunRequest(run="toy"))
            await stub.StopRun(pb.StopRunRequest(run="toy"))
        async with bert.channel() as channel:
            await AuthorityServiceStub(channel).CreateToken(authority_pb.CreateTokenRequest())
        await found.token()
        by = {
            event: [line["facts"].get("operator") for line in lines_of(found.state, event)]
            for event in (
                Event.RUN_STARTED,
                Event.RUN_PAUSED,
                Event.RUN_RESUMED,
                Event.RUN_ENDED,
                Event.TOKEN_CREATED,
            )
        }
        assert list(by.values()) == [[None], ["anna"], ["bert"], ["bert"], ["bert", None]]

    play(story, tmp_path / "s")


def test_what_a_run_does_by_itself_is_not_an_operators_doing(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        ACTING.set("anna")
        await start(coordinator)
        await serve_all(coordinator)  # the calls of the devices have this context, too, and close each round
        found = {event: lines_of(tmp_path / "state", event) for event in (Event.RUN_STARTED, Event.RUN_ENDED)}
        by = {event: [line["facts"].get("operator") for line in lines] for event, lines in found.items()}
        assert by == {Event.RUN_STARTED: ["anna"], Event.RUN_ENDED: [None]}

    scenario(story, tmp_path)


def test_a_revoked_operator_is_cut_off_and_refused(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        anna, bert = await person(found, "anna"), await person(found, "bert", OperatorRole.VIEWER)
        await start(found.coordinator)
        async with operator(anna) as stub, operator(bert) as other:
            watching = stub.WatchRun(pb.WatchRunRequest(run="toy"))
            assert (await watching.read()).status.summary.run == "toy"
            revoked, cut = await found.api.operators.revoke("anna", "lost laptop")
            assert (revoked.revoked, cut) == (True, 1)
            assert await _end_of(watching) == "operator anna was revoked"
            _, fault = await refused(stub.ListRuns(pb.ListRunsRequest()))
            assert fault.code == "revoked"
            assert len((await other.ListRuns(pb.ListRunsRequest())).runs) == 1
        (line,) = lines_of(found.state, Event.OPERATOR_REVOKED)
        assert line["facts"] == {"name": "anna", "reason": "lost laptop"}

    play(story, tmp_path / "s")


def test_a_new_key_ends_the_former_one_also_after_a_restart(tmp_path: Path) -> None:
    people = list[Person]()

    async def story(found: World) -> None:
        people.append(await person(found, "anna"))
        async with operator(people[0]) as stub:
            watching = stub.ListRuns(pb.ListRunsRequest())
            await watching
        people.append(await person(found, "anna", OperatorRole.VIEWER))
        await check(found)

    async def check(found: World) -> None:
        people[0].address = people[1].address = found.api.operators.address
        async with operator(people[0]) as stub:
            _, fault = await refused(stub.ListRuns(pb.ListRunsRequest()))
            assert fault.code == "unauthenticated"
            assert "has another key" in fault.message
        async with operator(people[1]) as stub:
            await stub.ListRuns(pb.ListRunsRequest())
            _, fault = await refused(stub.RemoveRun(pb.RemoveRunRequest()))
            assert fault.code == "refused"

    play(story, tmp_path / "s")
    play(check, tmp_path / "s")


def test_an_operator_needs_a_new_folder_when_the_server_has_a_new_key(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        former = await person(found, "anna")
        await person(found, "bert")
        await found.api.operators.revoke("bert", "")
        assert (await found.api.rotate()).operators == ("anna",)
        async with operator(former) as stub:
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.ListRuns(pb.ListRunsRequest())
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with operator(await person(found, "anna")) as stub:
            await stub.ListRuns(pb.ListRunsRequest())

    play(story, tmp_path / "s")


def test_a_name_that_cannot_be_and_a_key_that_was_revoked_are_refused(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        accounts, csr = found.api.operators, request(new_key())
        for name in ("../anna", ""):
            with pytest.raises(ConfigError):
                await accounts.add(name, OperatorRole.VIEWER, csr)
        assert accounts.known() == []
        await accounts.add("anna", OperatorRole.VIEWER, csr)
        await accounts.revoke("anna", "")
        with pytest.raises(BadPayload, match="revoked or replaced"):
            await accounts.add("bert", OperatorRole.VIEWER, csr)

    play(story, tmp_path / "s")


def test_one_operator_leaves_calls_to_the_others(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        anna, bert = await person(found, "anna"), await person(found, "bert")
        await start(found.coordinator)
        async with operator(anna) as stub, operator(bert) as other:
            watching = [stub.WatchRun(pb.WatchRunRequest(run="toy")) for _ in range(17)]
            ends = [await _end_of(each) for each in watching]
            assert ends.count("") == 16
            assert sum("operator anna has 16 calls" in end for end in ends) == 1
            assert len((await other.ListRuns(pb.ListRunsRequest())).runs) == 1

    play(story, tmp_path / "s")


async def _end_of(call: Any) -> str:
    """Why a stream ended at its next answer; "" if it did not."""
    try:
        await call.read()
    except aio.AioRpcError as error:
        return str(error.details())
    return ""
