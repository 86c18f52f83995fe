"""Seeded random histories: server and devices as they ship, in one process, on a simulated world.

    python -m tests.histories 4711 [--verbose]     one history again, with its trace
    python -m tests.histories --count 300          many; ends with 1 and the seeds that failed, if any did
    python -m tests.histories --count 30 --postgresql    the same with the store in PostgreSQL

From the agent to the store, with gRPC's servicers and stubs between them, nothing is replaced. What is
simulated is what the product stands on:

    loop.py      the event loop: time jumps to the next timer, threads' work is done in it, in seeded order
    system.py    the clock, files, random names and gRPC channels, as the code asks for them
    disk.py      what a power cut takes: everything that was not synced, kept, lost or torn by a seeded choice
    database.py  SQLite, which is real: a commit lasts, as `synchronous=FULL` promises, and may fail;
                 postgresql.py has a PostgreSQL in its place: a session may be lost in a commit
    network.py   delay, loss, late delivery, cuts in the middle of a transfer, partitions; serving.py, its end
    processes.py what runs together dies together: at any step of it, by its fuse

`plan.py` makes a world of a seed, `nemesis.py` breaks it for a while, `invariants.py` watches, by what
`expected.py` computes beside it, and `world.py` puts together `server.py`, `devices.py` and all the rest.
"""
