"""The authorization of the operators' port.

    TLS verified the certificate --> its key is the operator's --> its role may make this call --> service

While a call is carried out, every line that it adds to the audit log names its operator.
"""

import logging
from typing import Any

from fedserver.authority.operator_accounts import OperatorAccounts
from fedserver.authority.permissions import NEEDED, check_operator
from fedserver.authority.rate_limit import HOUR, RateLimit
from fedserver.rpc.admission.authorization import NOTED
from fedserver.rpc.admission.identity import Context, address_of, peer_of
from fedserver.rpc.admission.limits import Places
from fedserver.rpc.admission.messages import Behavior
from fedserver.store.identities.audit import ACTING, Event
from shoal.core.errors import ShoalError

log = logging.getLogger("shoal.auth")

CALLS, MIN_CALLS, CROWDED_CALLS, ALL_CALLS = 16, 4, 48, 64
"""Calls of one operator at a time; how many one may have while more than CROWDED_CALLS of all are open;
and calls of all."""


class OperatorAuthorization:
    """Asks the accounts about the caller of every call, before any of its messages is read."""

    def __init__(self, accounts: OperatorAccounts) -> None:
        self._accounts, self._noted = accounts, RateLimit(NOTED, HOUR)
        self._places = Places("calls", CALLS, MIN_CALLS, CROWDED_CALLS, ALL_CALLS, "operator")

    def around(self, method: str, behavior: Behavior) -> Behavior:
        async def answered(request: Any, context: Context) -> Any:
            name = await self._admitted(method, context)
            with self._places.taken(name), self._accounts.calling(name):
                ACTING.set(name)  # in the context of this call, which has a task of its own
                return await behavior(request, context)

        return answered

    async def _admitted(self, method: str, context: Context) -> str:
        """Who calls. Raises Unauthenticated, Revoked or Refused, and logs the denial."""
        name = ""
        try:
            peer = peer_of(context)
            name = peer.name
            check_operator(self._accounts.admit(peer).role, method)
        except ShoalError as error:
            call = method if method in NEEDED else "a call that is not served"
            address = address_of(context)
            if self._noted.allow(f"{name or address} {call} {error.code}"):
                caller = f"operator {name}" if name else "an unknown caller"
                log.warning("denied: %s of %s at %s: %s", call, caller, address, error.message)
                facts = {"operator": name, "call": call, "reason": error.code, "address": address}
                await self._accounts.storage.note(Event.DENIED, **facts)
            raise
        return name
