"""The device's side of Shoal: a light agent that talks to the server, and a process of its own that trains.

Where to look first:
  agent.py    a device's visit: hello, a task, its work, its report
  worker.py   the process that loads the author's learner and the data, and trains
  trial.py    learner and data tried on each other, before any work
  rpc.py      the only module that knows gRPC
  enroll.py   the right model for data without labels, in one exchange
"""
