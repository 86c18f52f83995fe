"""An audit of the client's privacy: attacks on what really leaves it, and the epsilon that they prove.

    python -m tests.audit --releases 10000 --seconds 280 --out runs/audit     (goes on where it ended)

Two data sets differ in one sample, the worst one that there is; the auditor is the server, chooses encoder
and projector, and knows both. The real client releases descriptors of each, many times, with a fresh ledger
each time. How often a test tells the two apart bounds epsilon from below. The bound has to stay under what is
claimed for `balanced` and `strict`, and to be above it for the papers' mechanism, whose claim is wrong.

training.py    one step of DP-SGD under hostile weights    test_adversary.py    200 kinds of asks
world.py    the two data sets, and the best test between them      client.py    ways through the real client
bounds.py   from the test's errors to a bound on epsilon           cases.py     what is audited, and its table
"""
