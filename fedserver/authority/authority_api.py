"""The operator API for tokens, devices and the server's key. It raises only ShoalErrors.

A change is carried out to its end even if the operator disconnects in the middle of it: the registry on disk
and the peer cache must never differ.
"""

from collections.abc import Callable, Collection

from fedserver.authority.answers import Ended, Known, Rotated, Withdrawn
from fedserver.authority.open_calls import to_the_end
from fedserver.authority.operator_accounts import OperatorAccounts
from fedserver.authority.peers import Peers
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.withdrawal import lineage_in
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import DeviceStanding, Registered, Terms, Token
from shoal.core.errors import DiskFull
from shoal.core.identity.join import JoinString
from shoal.core.types import DeviceId, RunId

LONGEST_REASON = 500


class AuthorityApi:
    """What operators may do. join_address: where devices join, "HOST:PORT", as it stands in join strings.

    operators: those who call over the network.
    """

    def __init__(
        self, coordinator: Coordinator, peers: Peers, join_address: str, operators: OperatorAccounts
    ) -> None:
        self._coordinator, self._peers, self.operators = coordinator, peers, operators
        self._storage, self._authority = coordinator.storage, peers.authority
        self._host, _, port = join_address.rpartition(":")
        self._port = int(port)

    # -- tokens ---------------------------------------------------------------------------------------------

    async def create_token(self, terms: Terms) -> tuple[Token, JoinString]:
        """Create a token and its join string, which is returned and not stored. Raises ConfigError."""
        token, secret = await self._storage.call(self._storage.identities.tokens.add, terms)
        return token, JoinString(self._host, self._port, self._authority.pin, token.token, secret)

    async def tokens(self) -> list[Token]:
        return await self._storage.call(self._storage.identities.tokens.all)

    async def revoke_token(self, token: str) -> Token:
        return await self._storage.call(self._storage.identities.tokens.revoke, token)

    # -- devices --------------------------------------------------------------------------------------------

    async def devices(self) -> list[Known]:
        """Every device that has ever joined, by name."""
        coordinator = self._coordinator
        await self._storage.unless_full(lambda: coordinator.in_turn(coordinator.write_journal()))
        seen = {
            each.device: each.last_seen for each in await self._storage.call(self._storage.journal.devices)
        }
        return [Known(**vars(each), last_seen=seen.get(each.device)) for each in self._peers.known()]

    @to_the_end
    async def approve(self, device: DeviceId, key: bytes = b"") -> Known:
        """Approve the key with which a device waits; one that it had before holds no more. key: SHA-256 of
        the key that was looked at; empty: whichever waits."""
        before = (await self._storage.call(self._storage.identities.registry.get, device)).spki
        approved = await self._storage.call(self._storage.identities.registry.approve, device, key.hex())
        self._peers.learn(approved)
        if approved.spki != before:
            self._coordinator.barred.discard(device)  # what barred it was the key before
            self._peers.cut(device)
        return await self._seen(device)

    @to_the_end
    async def refuse(self, device: DeviceId, reason: str) -> Known:
        """Revoke only the key that waits to take the place of a device's key."""
        registry = self._storage.identities.registry
        self._peers.learn(await self._storage.call(registry.refuse, device, reason[:LONGEST_REASON]))
        return await self._seen(device)

    @to_the_end
    async def revoke(self, device: DeviceId, reason: str) -> Ended:
        """Revoke a device: its open calls are cut, its leases withdrawn, and its next call is refused.

        The answer names the rounds with its updates, also of runs that are over.
        """
        await self._storage.call(
            self._storage.identities.registry.get, device
        )  # or there is nothing to revoke
        cut = await self._coordinator.at_once(
            self._end(device, self._storage.identities.registry.revoke, reason[:LONGEST_REASON])
        )
        await self._coordinator.revoked(device)
        counted = []
        took_part = await self._storage.call(self._storage.journal.runs_of, device)
        for run in list(self._coordinator.runs.values()):  # the models of a run that is over are still in use
            trained = list((await lineage_in(run, device)).trained) if run.run in took_part else []
            if run.active and device in run.engine.reported:
                trained.append(run.engine.state.progress + 1)
            counted += [(run.run, number) for number in trained]
            if trained or run.active:
                named = ", ".join(map(str, trained)) or "none known"
                note = run.note(f"revoked; rounds in which its updates count: {named}", device)
                await self._coordinator.in_turn(note)
        return Ended(await self._seen(device), cut, tuple(counted))

    @to_the_end
    async def withdraw(
        self, device: DeviceId, reason: str, confirmed: bool, replay: Collection[RunId]
    ) -> Withdrawn:
        """Where a device is, and, if it is confirmed, what is left of that once it was withdrawn.

        replay: the runs that go back to their last models without it, and go on. Raises NotFound and Refused
        for one that cannot, before anything is done.
        """
        registry, withdrawals = self._storage.identities.registry, self._coordinator.withdrawals
        before = await self._storage.call(registry.get, device)
        found = await withdrawals.price(device)
        withdrawals.check(found, replay, before.standing is DeviceStanding.WITHDRAWN)
        if not confirmed:
            return Withdrawn(await self._seen(device), 0, found.runs, found.releases)
        self._coordinator.check_deciding()
        runs = ", ".join(each.run for each in found.runs)
        releases = ", ".join(each.release for each in found.releases if each.with_it or each.grouped)
        cut = await self._coordinator.at_once(
            self._end(device, registry.withdraw, reason[:LONGEST_REASON], runs, releases)
        )
        await self._coordinator.revoked(device, "withdrawn")
        await withdrawals.carry_out(found, replay)
        left = (await withdrawals.price(device)).since(found, replay)
        return Withdrawn(await self._seen(device), cut, left.runs, left.releases)

    async def _end(self, device: DeviceId, how: Callable[..., Registered], *facts: str) -> int:
        """Bar the device, in memory and on disk; return how many open calls were cut.

        If the disk fails, the server restarts and reads from the disk whether the revocation is there.
        """
        barred = self._coordinator.barred
        before = device in barred
        barred.add(device)  # before the disk has it, so that no report gets in between
        try:
            known = await self._storage.call(how, device, *facts)
        except DiskFull:  # nothing was written, and the operator gets the error: the device stays as it was
            if not before:
                barred.discard(device)
            raise
        self._peers.learn(known)
        return self._peers.cut(device)

    async def _seen(self, device: DeviceId) -> Known:
        return next(each for each in await self.devices() if each.device == device)

    # -- the server's key -----------------------------------------------------------------------------------

    @to_the_end
    async def rotate(self) -> Rotated:
        """Replace the server's key. Devices follow the proof in the next certificate."""
        await self._storage.note(Event.AUTHORITY_ROTATED, former=self._authority.pin.hex())
        self._authority.rotate()
        people = tuple(each.name for each in self.operators.known() if not each.revoked)
        return Rotated(self._authority.pin, people)
