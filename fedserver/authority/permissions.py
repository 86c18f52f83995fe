"""Who may call what on the two ports that ask for certificates: devices' and operators'.

A call without a row is denied to everyone. If devices were served a call that has none, the server would not
start; operators' calls that have none are left to the Unix socket.

The rows of our own services are options of their methods (`proto/fed/v1/role.proto`): `allowed` for devices,
and `needs` for operators. They only name roles. That a lease and a blob belong to the device that asks for
them is checked where they are used: `fedserver.coordinator.device_api` and `visits.transfer` beside it.
"""

from collections.abc import Iterable, Mapping

from shoal.core.errors import IllegalEvent, Refused
from shoal.core.exchange import wire
from shoal.core.identity.joining import OperatorRole, Role

ALLOWED: Mapping[str, frozenset[Role]] = {
    **wire.roles_by_call(),
    "/grpc.health.v1.Health/Check": frozenset(Role),
    "/grpc.health.v1.Health/Watch": frozenset(),  # a call that never ends, and devices do not need it
    "/grpc.health.v1.Health/List": frozenset(),  # not needed
}


NEEDED: Mapping[str, OperatorRole | None] = wire.operator_roles_by_call()


def check_complete(served: Iterable[str]) -> None:
    """Raises IllegalEvent when a call that is served has no row, or a row belongs to no call."""
    served = set(served)
    if missing := sorted(served - set(ALLOWED)):
        raise IllegalEvent(
            f"no roles are allowed to call {', '.join(missing)}",
            "set the option `allowed` of the method in proto/fed/v1 and run scripts/generate",
        )
    if stale := sorted(set(ALLOWED) - served):
        raise IllegalEvent(
            f"{', '.join(stale)} has allowed roles, and is not served", "serve it, or remove the permission"
        )


def check_allowed(role: Role, method: str) -> None:
    """Check that a role may make a call. Raises Refused."""
    if role not in ALLOWED.get(method, frozenset()):
        name = method.rpartition("/")[2]
        raise Refused(
            f"a device with the role {role.value} may not call {name}",
            "ask the server's operator for a join string with another role",
        )


def check_operator(role: OperatorRole, method: str) -> None:
    """Check that an operator with this role may make a call over the network. Raises Refused."""
    needed, name = NEEDED.get(method), method.rpartition("/")[2]
    if needed is None:
        raise Refused(
            f"{name} cannot be called over the network", "call it on the server's machine, with --state"
        )
    if not role.suffices(needed):
        raise Refused(
            f"an operator with the role {role.value} may not call {name}",
            f"it needs the role {needed.value}: fedserver operator add, on the server's machine",
        )
