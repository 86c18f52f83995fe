"""What the answer to a task gives away without a guarantee, as its type says, before any work is done."""

from shoal.core.exchange.messages import Built, Described, Evaluated, Message, Represented, Scored, Trained
from shoal.core.exchange.payload import fields_of
from shoal.core.privacy.statement import OPEN
from shoal.core.types import Tensors


def left_open(message: Message) -> tuple[str, ...]:
    """Of the data of a device that answers this. Descriptors, bounds and prototypes tell for themselves.

    Initial weights follow from no data. Reports of kinds that are not known here are taken for the worst.
    """
    reply = message.reply
    if reply is Built:
        return ()
    types = {each for kinds, _ in fields_of(reply).values() for each in kinds}
    plain = getattr(message, "private", None) is None
    found = [OPEN["weights"]] if plain and types & {Tensors, tuple[Tensors, ...]} else []
    if reply in (Evaluated, Scored):
        found.append(OPEN["figures"])
    elif reply not in (Trained, Described, Represented):
        found.append(f"a {reply.kind!r} report, as computed")
    return tuple(found)
