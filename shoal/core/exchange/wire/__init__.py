"""Domain values <-> protobuf: the only place that knows the generated code, besides the two rpc modules.

`x_to_pb` takes a domain value, `x_from_pb` gives one back or raises BadPayload: what a peer sent is looked
at here for the first time, so every limit is checked before anything of the size that the peer claims is
made, and a value that comes out is a sane one. Two things are not checked here because a payload alone does
not show them: whether tensors fit the run's model, and whether plain numbers are finite;
`shoal.core.exchange.admit` does. protobuf itself has made its objects before we see them: the message limit
of gRPC bounds those.

Payloads, blob references and placements are read strictly (an unknown field refuses them); in what is
around them a field that is not known is passed over, so that a newer peer can add to it.
"""

from shoal.core.exchange.wire.bulk import message_from_bytes
from shoal.core.exchange.wire.checks import MAX_ENTRIES, MAX_TEXT, seconds_from_pb, seconds_to_pb
from shoal.core.exchange.wire.faults import fault_from_pb, fault_to_pb
from shoal.core.exchange.wire.identity import (
    challenge_from_pb,
    challenge_to_pb,
    enrolled_from_pb,
    enrolled_to_pb,
    joined_from_pb,
    joined_to_pb,
    joining_from_pb,
    joining_to_pb,
    rejoining_from_pb,
    rejoining_to_pb,
    roles_by_call,
)
from shoal.core.exchange.wire.observing import observation_from_pb, observation_to_pb
from shoal.core.exchange.wire.payload import payload_from_pb, payload_to_pb
from shoal.core.exchange.wire.placement import (
    answer_from_pb,
    answer_to_pb,
    place_from_pb,
    place_to_pb,
)
from shoal.core.exchange.wire.stored import (
    payload_from_bytes,
    payload_to_bytes,
    report_from_bytes,
    report_to_bytes,
    task_from_bytes,
    task_to_bytes,
    work_key,
)
from shoal.core.exchange.wire.tensors import (
    CHUNK,
    MAX_CHUNK,
    blob_from_pb,
    blob_to_pb,
    chunk_from_pb,
    chunk_to_pb,
    scalar_from_pb,
    scalar_to_pb,
    scalars_from_pb,
    scalars_to_pb,
    weights_from_pb,
    weights_to_pb,
)
from shoal.core.exchange.wire.visit import (
    Lease,
    hello_from_pb,
    hello_to_pb,
    lease_from_pb,
    lease_to_pb,
    next_from_pb,
    next_to_pb,
    receipt_from_pb,
    receipt_to_pb,
    report_from_pb,
    report_to_pb,
    welcome_from_pb,
    welcome_to_pb,
)
