"""The operators' side of their calls: what the command line and the page use."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from fedserver.authority.answers import Ended, IssuedOperator, Known, Rotated, Withdrawn
from fedserver.coordinator.status_types import (
    ClusterVersions,
    ReleaseStatus,
    ReleaseSummary,
    RolloutStatus,
    RunChange,
    RunStatus,
    RunSummary,
    ServerStatus,
)
from fedserver.rpc.channel import away, connect
from fedserver.rpc.wire import authority_wire, operator_wire, releases_wire
from fedserver.store.identities.records import Operator, Terms, Token
from fedserver.store.journal.newcomers import PlacementRecord
from fedserver.store.records import LogLine, Move, RunSpec
from shoal.core.engine.timeouts import ANSWER
from shoal.core.errors import BadPayload, ConfigError, ShoalError
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import authority_service_pb2 as authority_pb
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blob_pb
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1 import release_service_pb2 as release_pb
from shoal.core.exchange._pb.fed.v1.authority_service_pb2_grpc import AuthorityServiceStub
from shoal.core.exchange._pb.fed.v1.blob_service_pb2_grpc import BlobServiceStub
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault
from shoal.core.exchange._pb.fed.v1.operator_service_pb2_grpc import OperatorServiceStub
from shoal.core.exchange._pb.fed.v1.release_service_pb2_grpc import ReleaseServiceStub
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import digest, manifest_of, nbytes, pack, unpack
from shoal.core.exchange.wire.identity import OPERATOR_ROLES
from shoal.core.identity.joining import OperatorRole
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import DeviceId, ModelKey, RunId, Tensors

M = TypeVar("M", bound=Message)
T = TypeVar("T")
SLOW = (f"the server did not answer within {ANSWER:.0f} s", "look at its log, then try again")
"""The message and the hint of a call that took too long."""


class Started(NamedTuple):
    """A run that has started. cost: for people, what it asks of the owners' budgets; "" for nothing."""

    run: RunId
    cost: str


class OperatorClient:
    """A connection to a server. Raises only ShoalErrors; Unavailable if none runs, and, in what is about
    tokens, devices and operators, ConfigError where it has no certificates.

    state: the server's state folder, or the folder of an operator's certificate.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._channel = connect(state)
        self._operator, self._blobs = OperatorServiceStub(self._channel), BlobServiceStub(self._channel)
        self._releases = ReleaseServiceStub(self._channel)
        self._authority = AuthorityServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def start_run(self, spec: RunSpec, initial: Tensors | None, graph: bytes | None = None) -> Started:
        if graph is not None:
            sent = self._upload({"graph": np.frombuffer(graph, np.uint8)}).blob
            spec = replace(spec, graph=sent.sha256, graph_bytes=sent.size)
        request = operator_wire.spec_to_pb(spec)
        if initial is not None:
            request.initial_model.CopyFrom(wire.weights_to_pb(self._upload(initial)))
        hint = "the run may have been started: look with fedserver run ls"
        answer = self._answer(self._operator.StartRun, request, (SLOW[0], hint))
        return Started(answer.run, answer.cost)

    def runs(self) -> list[RunSummary]:
        found = self._answer(self._operator.ListRuns, pb.ListRunsRequest())
        return list(map(operator_wire.SUMMARY.from_pb, found.runs))

    def show(self, run: RunId) -> RunStatus:
        return self._status(self._operator.GetRun, pb.GetRunRequest(run=run))

    def stop_run(self, run: RunId, reason: str = "") -> RunStatus:
        return self._status(self._operator.StopRun, pb.StopRunRequest(run=run, reason=reason))

    def pause_run(self, run: RunId, reason: str = "") -> RunStatus:
        return self._status(self._operator.PauseRun, pb.PauseRunRequest(run=run, reason=reason))

    def resume_run(self, run: RunId) -> RunStatus:
        return self._status(self._operator.ResumeRun, pb.ResumeRunRequest(run=run))

    def change_run(self, run: RunId, change: RunChange) -> RunStatus:
        return self._status(self._operator.ChangeRun, operator_wire.change_to_pb(run, change))

    def prune_runs(self, run: RunId = "") -> dict[RunId, int]:
        """Delete the models of earlier rounds of a run, or of all runs that are over: how many, by run."""
        return dict(self._answer(self._operator.RemoveRun, pb.RemoveRunRequest(run=run)).deleted)

    def remove_run(self, run: RunId) -> None:
        self._answer(self._operator.RemoveRun, pb.RemoveRunRequest(run=run, whole=True))

    def clusters(self, run: RunId) -> list[ClusterVersions]:
        found = self._answer(self._operator.ListClusters, pb.ListClustersRequest(run=run))
        return list(map(operator_wire.versions_from_pb, found.clusters))

    def roll_back(self, run: RunId, round: int, cluster: ModelKey = "") -> RunStatus:
        request = pb.RollBackRequest(run=run, round=round, cluster=cluster)
        return self._status(self._operator.RollBack, request)

    def status(self, *, released: bool = True) -> ServerStatus:
        """released: whether to include what devices have released, which takes longest to find."""
        request = pb.GetStatusRequest(without_released=not released)
        return operator_wire.SERVER.from_pb(self._answer(self._operator.GetStatus, request))

    def watch(self, run: RunId, timeout: float | None = None) -> Iterator[RunStatus]:
        """The run now and at each change, until it is over. Raises TimedOut after `timeout` seconds."""
        with self._errors((f"run {run} is not over yet, and the time is up", "give a larger --timeout")):
            for found in self._operator.WatchRun(pb.WatchRunRequest(run=run), timeout=timeout):
                yield operator_wire.status_from_pb(found.status)

    def log(self, run: RunId, after: int = 0) -> Iterator[LogLine]:
        """The lines of a run's log with a number above `after`, all that there are."""

        def page(after: int) -> list[LogLine]:
            found = self._answer(self._operator.ReadLog, pb.ReadLogRequest(run=run, after=after))
            return list(map(operator_wire.LINE.from_pb, found.lines))

        return _pages(page, after, lambda line: line.number)

    def history(
        self, run: RunId, after: int = 0, *, devices: bool = True, most: int = 0
    ) -> Iterator[RoundHistory]:
        """The rounds of a run that are over, with numbers above `after`, oldest first.

        They are fetched page by page. devices: whether to include the figures and the positions of devices,
        which are most of a history. most: how many are fetched at a time; 0: as many as the server likes.
        """

        def page(after: int) -> list[RoundHistory]:
            request = pb.ReadHistoryRequest(run=run, after=after, without_devices=not devices, most=most)
            found = self._answer(self._operator.ReadHistory, request)
            return list(map(operator_wire.ROUND.from_pb, found.rounds))

        return _pages(page, after, lambda each: each.round)

    def placements(self, run: RunId = "", device: DeviceId = "", after: int = 0) -> Iterator[PlacementRecord]:
        """What newcomers were answered, with numbers above `after`, oldest first.

        run, device: only those of this run or device; "": of all.
        """

        def page(after: int) -> list[PlacementRecord]:
            request = pb.ListPlacementsRequest(run=run, device=device, after=after)
            found = self._answer(self._operator.ListPlacements, request)
            return list(map(operator_wire.PLACEMENT.from_pb, found.placements))

        return _pages(page, after, lambda each: each.number)

    def releases(self) -> tuple[list[ReleaseSummary], Mapping[str, list[Move]], list[RolloutStatus]]:
        """All releases, newest first; by channel what it was given, oldest first; and the latest rollouts,
        newest first."""
        found = self._answer(self._releases.ListReleases, release_pb.ListReleasesRequest())
        channels = releases_wire.channels_from_pb(found.channels)
        rollouts = list(map(releases_wire.ROLLOUT.from_pb, found.rollouts))
        return list(map(releases_wire.SUMMARY.from_pb, found.releases)), channels, rollouts

    def release(self, name: str) -> ReleaseStatus:
        """All of the release of this name, or of the one that the channel of this name has."""
        found = self._answer(self._releases.GetRelease, release_pb.GetReleaseRequest(release=name))
        return releases_wire.WHOLE.from_pb(found)

    def create_release(self, run: RunId, label: str = "") -> ReleaseSummary:
        request = release_pb.CreateReleaseRequest(run=run, label=label)
        return releases_wire.SUMMARY.from_pb(self._answer(self._releases.CreateRelease, request).release)

    def use_release(
        self,
        release: str,
        channel: str = "",
        pin: bool = False,
        share: float | None = None,
        worse: float | None = None,
    ) -> tuple[list[Move], RolloutStatus | None]:
        """What the channel was given, oldest first, the last of which it has now; and the rollout that goes
        on in it. share, worse: see `UseReleaseRequest`."""
        request = release_pb.UseReleaseRequest(
            release=release, channel=channel, pin=pin, share=share, worse=worse
        )
        found = self._answer(self._releases.UseRelease, request)
        going = releases_wire.ROLLOUT.from_pb(found.rollout) if found.HasField("rollout") else None
        return releases_wire.channel_from_pb(found.channel), going

    def remove_release(self, name: str) -> None:
        self._answer(self._releases.RemoveRelease, release_pb.RemoveReleaseRequest(name=name))

    def create_token(self, terms: Terms) -> tuple[Token, str]:
        """The token, and its join string."""
        found = self._answer(self._authority.CreateToken, authority_wire.TERMS.to_pb(terms))
        return authority_wire.TOKEN.from_pb(found.token), found.join

    def tokens(self) -> list[Token]:
        found = self._answer(self._authority.ListTokens, authority_pb.ListTokensRequest())
        return list(map(authority_wire.TOKEN.from_pb, found.tokens))

    def revoke_token(self, token: str) -> Token:
        found = self._answer(self._authority.RevokeToken, authority_pb.RevokeTokenRequest(token=token))
        return authority_wire.TOKEN.from_pb(found.token)

    def devices(self) -> list[Known]:
        found = self._answer(self._authority.ListDevices, authority_pb.ListDevicesRequest())
        return list(map(authority_wire.DEVICE.from_pb, found.devices))

    def approve(self, device: DeviceId, key: str = "") -> Known:
        """key: SHA-256, in hexadecimal, of the one that was looked at; "": whichever waits."""
        request = authority_pb.ApproveDeviceRequest(device=device, fingerprint=bytes.fromhex(key))
        found = self._answer(self._authority.ApproveDevice, request)
        return authority_wire.DEVICE.from_pb(found.device)

    def revoke(self, device: DeviceId, reason: str = "", waiting: bool = False) -> Ended:
        request = authority_pb.RevokeDeviceRequest(device=device, reason=reason, waiting=waiting)
        return authority_wire.ENDED.from_pb(self._answer(self._authority.RevokeDevice, request))

    def withdraw(
        self, device: DeviceId, reason: str = "", confirmed: bool = False, replay: Sequence[RunId] = ()
    ) -> Withdrawn:
        """What it would take to have the data of a device count no more; confirmed: that it is done."""
        request = authority_pb.WithdrawDeviceRequest(
            device=device, reason=reason, confirmed=confirmed, replay=replay
        )
        with self._errors():  # all histories are read, and reports that are being combined are waited for
            return authority_wire.WITHDRAWN.from_pb(self._authority.WithdrawDevice(request))

    def rotate(self) -> Rotated:
        found = self._answer(self._authority.RotateAuthority, authority_pb.RotateAuthorityRequest())
        return Rotated(found.fingerprint, tuple(found.operators))

    def add_operator(self, name: str, role: OperatorRole, csr: bytes) -> IssuedOperator:
        request = authority_pb.AddOperatorRequest(operator=name, role=OPERATOR_ROLES[role], csr=csr)
        return authority_wire.ISSUED.from_pb(self._answer(self._authority.AddOperator, request))

    def operators(self) -> list[Operator]:
        found = self._answer(self._authority.ListOperators, authority_pb.ListOperatorsRequest())
        return list(map(authority_wire.OPERATOR.from_pb, found.operators))

    def revoke_operator(self, name: str, reason: str = "") -> tuple[Operator, int]:
        """The operator, and how many open calls were cut."""
        request = authority_pb.RevokeOperatorRequest(operator=name, reason=reason)
        found = self._answer(self._authority.RevokeOperator, request)
        return authority_wire.OPERATOR.from_pb(found.operator), found.cut

    def fetch(self, weights: Weights) -> Tensors:
        """A model, in memory. Raises BadPayload when its bytes are not those of its name."""
        data = bytearray()
        request = blob_pb.FetchRequest(blob=wire.blob_to_pb(weights.blob))
        with self._errors():
            for response in self._blobs.Fetch(request):
                data += wire.chunk_from_pb(response.chunk, len(data))
        tensors = unpack(weights.manifest, memoryview(bytes(data)))
        if digest(tensors) != weights.blob.sha256:
            raise BadPayload(f"the bytes of blob {weights.blob.sha256[:12]} are not those of its name")
        return tensors

    def _upload(self, tensors: Tensors) -> Weights:
        blob = BlobRef(digest(tensors), nbytes(tensors))
        with self._errors():
            self._blobs.Upload(_requests(blob, tensors))
        return Weights(manifest_of(tensors), blob)

    def _status(self, call: Callable[..., Any], request: Message) -> RunStatus:
        """The run, as the answer to such a call shows it."""
        return operator_wire.status_from_pb(self._answer(call, request).status)

    def _answer(self, call: Callable[..., M], request: Message, timed_out: tuple[str, str] = SLOW) -> M:
        """The server's answer to a call that takes `ANSWER` seconds at most. Raises as `_errors`."""
        with self._errors(timed_out):
            return call(request, timeout=ANSWER)

    @contextmanager
    def _errors(self, timed_out: tuple[str, str] = SLOW) -> Iterator[None]:
        """Around a call: what gRPC raises becomes a ShoalError. timed_out: as `SLOW`."""
        try:
            yield
        except grpc.RpcError as error:
            raise self._error_of(error, timed_out) from None

    def _error_of(self, error: Any, timed_out: tuple[str, str]) -> ShoalError:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return ConfigError(
                f"the server of {self._state} runs in plain text, without certificates",
                "stop it, make them with fedserver init, start it without --insecure-loopback",
            )
        trailing = dict(error.trailing_metadata() or ())
        try:
            if fault := trailing.get("shoal-fault-bin"):
                return wire.fault_from_pb(Fault.FromString(fault))
        except (BadPayload, DecodeError):
            pass
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return away(self._state)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return TimedOut(*timed_out)
        return ShoalError(f"{error.code().name.lower()}: {error.details()}")


class TimedOut(ShoalError):
    """What was waited for did not happen in time.

    To do: a larger `--timeout`; after `fedserver run start`, look with `fedserver run ls`.
    """

    code, exit_code = "timeout", 6


def _pages(page: Callable[[int], Sequence[T]], after: int, number: Callable[[T], int]) -> Iterator[T]:
    """All of them with numbers above `after`, of which `page` has the next ones after a number."""
    while found := page(after):
        yield from found
        after = number(found[-1])


def _requests(blob: BlobRef, tensors: Tensors) -> Iterator[blob_pb.UploadRequest]:
    yield blob_pb.UploadRequest(start=blob_pb.UploadStart(blob=wire.blob_to_pb(blob)))
    offset = 0
    for piece in pack(tensors):
        for start in range(0, len(piece), wire.CHUNK):
            data = bytes(piece[start : start + wire.CHUNK])
            yield blob_pb.UploadRequest(chunk=wire.chunk_to_pb(offset, data))
            offset += len(data)
