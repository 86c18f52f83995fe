"""The operator API for tokens, devices and authorities. It raises only ShoalErrors.

A change is carried out to its end even if the operator disconnects in the middle of it: the registry on disk
and the peer cache must never differ.
"""

import time
from dataclasses import replace

from fedserver.authority.answers import Ended, Known, Root
from fedserver.authority.open_calls import to_the_end
from fedserver.authority.operator_accounts import OperatorAccounts
from fedserver.authority.peers import Peers
from fedserver.authority.roots import new_root
from fedserver.coordinator.coordinator import Coordinator
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import DAY, DeviceStanding, Registered, Terms, Token
from shoal.core.errors import DiskFull, Refused
from shoal.core.identity.join import JoinString
from shoal.core.identity.joining import NAME
from shoal.core.types import DeviceId

RECENT = 90 * DAY
"""A device that has not called for longer does not hold up a change of the authority."""
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
        pin = self._authority.joining.pin
        return token, JoinString(self._host, self._port, pin, token.token, secret)

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
        return [Known(each, seen.get(each.device)) for each in self._peers.known()]

    @to_the_end
    async def approve(self, device: DeviceId) -> Known:
        return await self._changed(
            await self._storage.call(self._storage.identities.registry.approve, device)
        )

    @to_the_end
    async def rename(self, device: DeviceId, display: str) -> Known:
        if not NAME.fullmatch(display):
            raise Refused(
                f"{display[:64]!r} is not a valid display name",
                "use 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
            )
        return await self._changed(
            await self._storage.call(self._storage.identities.registry.rename, device, display)
        )

    @to_the_end
    async def revoke(self, device: DeviceId, reason: str) -> Ended:
        """Revoke an identity: its open calls are cut, its leases withdrawn, and its next call is refused.

        The answer names the latest rounds with its updates, also of runs that are over.
        """
        await self._storage.call(
            self._storage.identities.registry.get, device
        )  # or there is nothing to revoke
        cut = await self._coordinator.at_once(self._end(device, reason[:LONGEST_REASON]))
        await self._coordinator.revoked(device)
        counted = []
        for run in list(self._coordinator.runs.values()):  # the models of a run that is over are still in use
            rounds = await self._storage.call(self._storage.reports.rounds_of, run.run, device)
            if not run.active:  # the round that was open when it ended was never combined
                rounds = [number for number in rounds if number < run.engine.round]
            known = [
                await self._storage.call(self._storage.journal.timeline.read, run.run, number - 1, most=1)
                for number in rounds
            ]
            present = run.engine.state.progress + 1  # of the round that is open
            trained = list(dict.fromkeys(page[0].progress if page else present for page in known))
            counted += [(run.run, number) for number in trained]
            if trained or run.active:
                named = ", ".join(map(str, trained)) or "none known"
                note = run.note(f"revoked; rounds in which its updates count: {named}", device)
                await self._coordinator.in_turn(note)
        return Ended(await self._seen(device), cut, tuple(counted))

    async def _end(self, device: DeviceId, reason: str) -> int:
        """Bar the device, in memory and on disk; return how many open calls were cut.

        If the disk fails, the server restarts and reads from the disk whether the revocation is there.
        """
        barred = self._coordinator.barred
        before = device in barred
        barred.add(device)  # before the disk has it, so that no report gets in between
        try:
            known = await self._storage.call(self._storage.identities.registry.revoke, device, reason)
        except DiskFull:  # nothing was written, and the operator gets the error: the device stays as it was
            if not before:
                barred.discard(device)
            raise
        self._peers.learn(known)
        return self._peers.cut(device)

    async def _changed(self, device: Registered) -> Known:
        self._peers.learn(device)
        return await self._seen(device.device)

    async def _seen(self, device: DeviceId) -> Known:
        return next(each for each in await self.devices() if each.device.device == device)

    # -- authorities ----------------------------------------------------------------------------------------

    async def roots(self) -> list[Root]:
        """The trusted authorities, oldest first."""
        devices = [each for each in await self.devices() if _counts(each)]
        return [self._root(name, devices) for name in self._authority.roots]

    @to_the_end
    async def add_root(self) -> Root:
        name, pair = new_root(self._authority.federation)
        self._authority.check_room()
        await self._storage.note(Event.AUTHORITY_ADDED, authority=name)
        self._authority.add(name, pair)
        self._coordinator.end_sessions()
        return await self._found(name)

    @to_the_end
    async def use_root(self, name: str, force: bool) -> Root:
        """Let an authority sign. Raises Refused while approved devices do not know it, unless forced."""
        found = await self._found(name)
        if found.signs:
            return found
        if found.awaited and not force:
            people = any(each.startswith("operator ") for each in found.awaited)
            who = f"{len(found.awaited)} devices{' and operators' if people else ''}"
            raise Refused(
                f"{who} do not trust authority {name} yet: {_some(found.awaited)}",
                "wait until devices have renewed, and give operators new certificates; with --force, devices "
                "must rejoin",
            )
        await self._storage.note(Event.AUTHORITY_USED, authority=name, forced=force)
        self._authority.use(name)
        self._coordinator.end_sessions()
        return replace(found, signs=True)

    @to_the_end
    async def drop_root(self, name: str, force: bool) -> None:
        """Drop an authority. Raises Refused for the one that signs, and while it is in use unless forced."""
        found = await self._found(name)
        if found.certificates and not force:
            raise Refused(
                f"certificates of authority {name} that are in use: {found.certificates}",
                "wait until their devices have renewed, and give operators new certificates; "
                "with --force, devices must rejoin",
            )
        self._authority.check_droppable(name)
        await self._storage.note(Event.AUTHORITY_DROPPED, authority=name, forced=force)
        self._authority.drop(name)
        self._coordinator.end_sessions()

    async def _found(self, name: str) -> Root:
        self._authority.root(name)
        return next(root for root in await self.roots() if root.name == name)

    def _root(self, name: str, devices: list[Known]) -> Root:
        pair, now = self._authority.roots[name], time.time()
        valid = [
            certified
            for each in devices
            for certified in each.device.certificates
            if certified.root == name and certified.expires > now
        ]
        awaited = [each.device.device for each in devices if _recent(each) and not _has_root(each, name)]
        people = self.operators.current()
        number = len(valid) + sum(each.root == name for each in people)
        awaited += [f"operator {each.name}" for each in people if name not in each.bundle]
        expires = pair.certificate.not_valid_after_utc.timestamp()
        return Root(name, pair.pin, name == self._authority.issuing, expires, number, tuple(awaited))


def _counts(known: Known) -> bool:
    return known.device.standing is DeviceStanding.APPROVED and bool(known.device.certificates)


def _recent(known: Known) -> bool:
    since = max(known.last_seen or 0.0, known.device.certificates[-1].issued)
    return since > time.time() - RECENT


def _has_root(known: Known, root: str) -> bool:
    """Whether the device has called with a certificate that came with this root, so that it has both."""
    used = [each for each in known.device.certificates if each.first_used is not None]
    newest = used[-1] if used else known.device.certificates[-1]
    return root in newest.bundle


def _some(devices: tuple[DeviceId, ...]) -> str:
    return ", ".join(devices[:10]) + (f" and {len(devices) - 10} more" if len(devices) > 10 else "")
