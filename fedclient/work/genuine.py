"""A model on the disk is used only if it is that of a release as the server has signed it.

`fedclient place` writes what the server has signed into the header of the model's file, so one rename
replaces both. The server is known by the certificate in this device's identity, which follows its key. A
model of a run, one from a server without certificates, and one that an earlier version has written are used
as they are. What this device has made of a model, by fine-tuning, no one but itself could sign.

As a process of its own, for devices with little memory, where what checks signatures is not to stay:

    {"model": PATH, "identity": FOLDER} --> standard input     standard output --> nothing, or the error
"""

import json
from pathlib import Path

from fedclient.store.state import GRAPH
from fedclient.work.pipes import receive, send, take_pipes
from fedclient.work.predictions import GRAPH_DIGEST, files_of, graph_beside, header_of, read_model
from fedclient.work.spawning import Child
from shoal.core.errors import NotGenuine, ShoalError
from shoal.core.exchange.seal import HINT, Signed, opened
from shoal.core.exchange.wire import fault_from_bytes, fault_to_bytes

SEAL, SIGNATURE, FINE_TUNING = "seal", "signature", "fine_tuning"
"""In the header of a model's file: what is signed, the signature in hexadecimal; and whether it was made
here."""


def check_stored(model: Path, identity: Path) -> None:
    """Check a model's file, those that predict with it, and the graph beside it. identity: the device's
    folder.

    Raises NotGenuine, and what reading the files raises.
    """
    header = header_of(model) if model.is_file() else {}
    if SEAL not in header:
        return
    from fedclient.identity.keyring import Keyring

    if (known := Keyring(identity).identity()) is None:
        return
    try:
        signature = bytes.fromhex(header.get(SIGNATURE, ""))
    except ValueError:
        raise NotGenuine(f"the signature in {model} cannot be read", HINT) from None
    seal = opened(Signed(header[SEAL].encode(), signature), known.authority)
    for name in {model.name, *files_of(model, header)}:
        path = model.with_name(name)
        if name != model.name or FINE_TUNING not in header:
            seal.check(seal.release, header_of(path).get("cluster", ""), read_model(path))
    if GRAPH_DIGEST in header:
        seal.check_graph(header[GRAPH_DIGEST])
        graph_beside(model.with_name(GRAPH), model)


async def checked_apart(model: Path, identity: Path) -> str:
    """The same by a process that ends: "", or why the model is not used. Raises WorkerDied."""
    child = await Child.start("fedclient.work.genuine", "the check of the stored model", 1, frugal=True)
    try:
        found = await child.ask(json.dumps({"model": str(model), "identity": str(identity)}).encode())
    finally:
        await child.end()
    return str(fault_from_bytes(found)) if found else ""


def main() -> None:
    source, sink = take_pipes()
    given = receive(source)
    assert given is not None
    asked, answer = json.loads(given), b""
    try:
        check_stored(Path(asked["model"]), Path(asked["identity"]))
    except ShoalError as error:
        answer = fault_to_bytes(error)
    send(sink, answer)


if __name__ == "__main__":
    main()
