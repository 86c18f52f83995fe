"""Convert domain values to protobuf, and back. Only this package and the rpc modules use generated code.

`x_to_pb` takes a domain value; `x_from_pb` returns one or raises BadPayload. What a peer sent is read here
for the first time, so every limit is checked before anything of the size that the peer claims is allocated,
and every value that is returned is legal. Two things cannot be seen in a payload by itself: whether
tensors fit the run's model, and whether plain numbers are finite. `shoal.core.exchange.admit` checks those.
protobuf has created its own objects before this code runs; the message limit of gRPC bounds them.

Payloads, blob references and placements are read strictly: an unknown field refuses them. In the messages
around them an unknown field is ignored, so that a newer peer can add one.
"""

from shoal.core.exchange.wire.bulk import message_from_bytes
from shoal.core.exchange.wire.checks import MAX_ENTRIES, MAX_TEXT, seconds_from_pb, seconds_to_pb
from shoal.core.exchange.wire.faults import fault_from_pb, fault_to_pb
from shoal.core.exchange.wire.frames import (
    Line,
    fetch_frame,
    fetched,
    upload_frame,
    upload_start,
    uploaded,
)
from shoal.core.exchange.wire.identity import (
    admitted_from_pb,
    challenge_from_pb,
    challenge_to_pb,
    identity_from_pb,
    identity_to_pb,
    joined_to_pb,
    joining_from_pb,
    joining_to_pb,
    operator_roles_by_call,
    returned_to_pb,
    returning_from_pb,
    returning_to_pb,
    roles_by_call,
)
from shoal.core.exchange.wire.observing import observation_from_pb, observation_to_pb
from shoal.core.exchange.wire.payload import payload_from_pb, payload_to_pb
from shoal.core.exchange.wire.placement import (
    answer_from_pb,
    answer_to_pb,
    place_from_pb,
    place_to_pb,
    seal_from_pb,
    seal_to_pb,
)
from shoal.core.exchange.wire.stored import (
    answer_from_bytes,
    answer_to_bytes,
    fault_from_bytes,
    fault_to_bytes,
    payload_from_bytes,
    payload_to_bytes,
    place_from_bytes,
    place_to_bytes,
    report_from_bytes,
    report_to_bytes,
    seal_from_bytes,
    seal_to_bytes,
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
