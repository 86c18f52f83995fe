"""The part of a placement that needs the server: ask, and fetch what the answer names."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from fedclient.agent.allowance import Allowance
from fedclient.agent.transfers import Transfers
from fedclient.config import ClientConfig
from fedclient.net.backoff import Backoff, patiently
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder
from shoal.core.errors import BadPayload, NotFound
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.choosing.watching import Watch
from shoal.core.exchange.link import Link, Placement, Question, run_of
from shoal.core.exchange.parts import Evidence
from shoal.core.exchange.payload import BlobRef, Payload, Weights
from shoal.core.exchange.seal import Signed, opened
from shoal.core.types import RunId

T = TypeVar("T")

MAX_MODELS = 64
"""The models of how many clusters this device takes at once, to choose among them."""


class Asks(Protocol):
    """What a `Placer` needs of a server. received: bytes of blobs that were fetched so far. seal: what the
    server has signed of the release that the last answer names, checked; None where it signs none."""

    received: int
    seal: Signed | None

    async def ask(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool
    ) -> Question | Placement:
        """The server's answer. On return, the blobs that the device needs of it are in the device's folder.

        Raises ShoalErrors: Refused if the run cannot place, Unavailable if there is no server, NotGenuine if
        the release is not what the server has signed.
        """
        ...


class Asker:
    """Asks by a link of this process. doing: tells people what the device waits for. light: the device has no
    learner, so the run's graph is fetched, too. check: raises an error if the owner has refused a run; it is
    called before evidence leaves, each time, since the server may be away for long. authority: the server's
    certificate (PEM) as the device has it now, by which releases are checked; b"" without TLS.
    """

    def __init__(
        self,
        link: Link,
        store: BlobStore,
        doing: Callable[[str], None],
        allowance: Allowance,
        light: bool = False,
        check: Callable[[RunId], None] = lambda run: None,
        authority: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._link, self._store, self._doing = link, store, doing
        self._allowance, self._light, self._check = allowance, light, check
        self._transfers = Transfers(
            link, store, self._patiently, allowance.download_bytes, allowance.bandwidth
        )
        self._backoff, self._authority = Backoff(), authority
        self.received = 0
        self.seal: Signed | None = None

    async def ask(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool
    ) -> Question | Placement:
        async def once() -> Question | Placement:
            if isinstance(evidence, Evidence):
                self._check(run_of(run))
            return await self._link.place(run, evidence, accept_nearest)

        asking_again = False
        while True:
            answer = await self._patiently(once)
            await self._get_seal(answer)
            try:
                await self._fetch_all(answer, accept_nearest)
            except NotFound as error:
                # A restarted server has forgotten what it offered to this newcomer: one more question renews
                # it.
                if asking_again:
                    raise
                self._doing(f"asking the server again: {error.message}")
                asking_again = True
            else:
                return answer

    async def _get_seal(self, answer: Question | Placement) -> None:
        """Get the seal of the release, if there is one, before anything else of it."""
        self.seal = None
        if answer.release and self._authority():
            self.seal = await self._patiently(lambda: self._link.seal(answer.release))
        if self.seal is not None:
            seal = opened(self.seal, self._authority())
            if answer.graph is not None:
                seal.check_graph(answer.graph.sha256)

    async def _fetch_all(self, answer: Question | Placement, accept_nearest: bool) -> None:
        what: dict[BlobRef, str] = {}
        if self._light and answer.graph is not None:
            what[answer.graph] = "the run's graph"
        if isinstance(answer, Question):
            _refuse_more(answer.payload)
            for weights in answer.payload.weights():
                what.setdefault(weights.blob, "what is needed to look at the data")
        elif (model := wanted(answer, accept_nearest)) is not None:
            what.setdefault(model.blob, f"the model of {answer.assignment.cluster}")
        if what:
            self._store.make_room(what, self._allowance.kept_bytes)
        for blob, name in what.items():
            self._doing(f"fetching {name}")
            known = self._store.has(blob)
            await self._transfers.fetch(blob, {})  # which refuses what is too large, also if it is here
            self.received += 0 if known else blob.size

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        return await patiently(call, self._backoff, self._allowance.give_up_after, self._doing)


@asynccontextmanager
async def asking(
    settings: ClientConfig, doing: Callable[[str], None], say: Callable[[str], None], give_up_after: float
) -> AsyncIterator[Asker]:
    """An asker over a link of its own. say: prints what people may read later."""
    # gRPC, and what needs it, is only in a process that calls this.
    from fedclient.identity.connection import endpoint
    from fedclient.identity.link import SecureLink
    from fedclient.identity.link import opened as connected

    folder, allowance = DeviceFolder(settings.state), settings.limits.allowance(give_up_after)
    async with connected(endpoint(settings), folder, say) as link:
        store, check = BlobStore(folder.blobs), settings.consents.check_not_refused

        def authority() -> bytes:
            return link.identity.authority if isinstance(link, SecureLink) else b""

        yield Asker(link, store, doing, allowance, settings.learner is None, check, authority)


def wanted(answer: Placement, accept_nearest: bool) -> Weights | None:
    """The model of an answer that the owner wants: none if the server abstained, unless the nearest will
    do."""
    return answer.model if accept_nearest or not answer.assignment.abstained else None


def _refuse_more(question: Payload) -> None:
    """Refuse more models than were wished for, before any byte is fetched, and what a device asks itself
    only: the owner pays for its answer."""
    if question.kind == Watch.kind:
        raise BadPayload("the server asks whether this device's data have moved", "update the server")
    count = len(str(question.parts.get("names")).split(" "))
    if question.kind == ChooseCompact.kind and not 2 <= count <= MAX_MODELS + 1:
        raise BadPayload(f"the server gives {count} models", f"2 to {MAX_MODELS + 1} are taken")
