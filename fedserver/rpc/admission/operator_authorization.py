"""The authorization of the operators' port.

    TLS verified the certificate --> its key is the operator's --> its role may make this call --> service

While a call is carried out, every line that it adds to the audit log names its operator.
"""

from typing import Any

from fedserver.authority.operator_accounts import OperatorAccounts
from fedserver.authority.permissions import NEEDED, check_operator
from fedserver.rpc.admission.authorization import Denials
from fedserver.rpc.admission.identity import Context, peer_of
from fedserver.rpc.admission.limits import Places
from fedserver.rpc.admission.messages import Behavior
from fedserver.store.identities.audit import ACTING
from shoal.core.errors import ShoalError

CALLS, MIN_CALLS, CROWDED_CALLS, ALL_CALLS = 16, 4, 48, 64
"""Calls of one operator at a time; how many one may have while more than CROWDED_CALLS of all are open;
and calls of all."""


class OperatorAuthorization:
    """Asks the accounts about the caller of every call, before any of its messages is read."""

    def __init__(self, accounts: OperatorAccounts) -> None:
        self._accounts, self._denials = accounts, Denials(accounts.storage, "operator", NEEDED)
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
            await self._denials.note(name, method, context, error)
            raise
        return name
