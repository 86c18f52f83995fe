"""Who may call what on the devices' port. What has no row is denied; a call without one stops the start.

Rows give the role alone. That a lease and a blob belong to the device that asks for them is looked at where
they are: `fedserver.coordinator.device_api`, `fedserver.coordinator.transfer`.
"""

from collections.abc import Iterable, Mapping

from shoal.core.errors import IllegalEvent, Refused
from shoal.core.identity.enrolled import Role

TRAIN, PLACED = frozenset({Role.TRAIN}), frozenset({Role.TRAIN, Role.INFER_ONLY})
ALL, NOBODY = frozenset(Role), frozenset[Role]()

ALLOWED: Mapping[str, frozenset[Role]] = {
    "/fed.v1.DeviceService/Hello": PLACED,  # tells the cadences, and when to renew
    "/fed.v1.DeviceService/NextTask": TRAIN,
    "/fed.v1.DeviceService/Alive": TRAIN,
    "/fed.v1.DeviceService/Report": TRAIN,
    "/fed.v1.DeviceService/Leave": PLACED,
    "/fed.v1.PlacementService/Place": PLACED,
    "/fed.v1.BlobService/Fetch": PLACED,
    "/fed.v1.BlobService/Uploaded": TRAIN,
    "/fed.v1.BlobService/Upload": TRAIN,
    "/fed.v1.IdentityService/Renew": ALL,
    "/fed.v1.ObserverService/ObserveRuns": frozenset({Role.OBSERVER}),
    "/grpc.health.v1.Health/Check": ALL,
    "/grpc.health.v1.Health/Watch": NOBODY,  # a call that never ends, and devices do not need it
    "/grpc.health.v1.Health/List": NOBODY,  # not needed
}


def check_complete(served: Iterable[str]) -> None:
    """Raises IllegalEvent when a call that is served has no row, or a row is of no call."""
    served = set(served)
    if missing := sorted(served - set(ALLOWED)):
        raise IllegalEvent(f"nobody said who may call {', '.join(missing)}", "add a row to permissions.py")
    if stale := sorted(set(ALLOWED) - served):
        raise IllegalEvent(
            f"there is no {', '.join(stale)} to be allowed", "take the row from permissions.py"
        )


def check_allowed(role: Role, method: str) -> None:
    """Raises Refused."""
    if role not in ALLOWED.get(method, frozenset()):
        name = method.rpartition("/")[2]
        raise Refused(
            f"a device with the role {role.value} may not call {name}",
            "ask the server's operator for a join string with another role",
        )
