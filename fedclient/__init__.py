"""The device's side of Shoal: a light agent that talks to the server, and a separate process that trains.

Where to look first:
  agent/agent.py        a device's visit: hello, a task, its work, its report
  placing/placement.py  the right model for data without labels, in one exchange
  agent/service.py      what the verbs of cli/ do, put together from the parts
  work/worker.py        the process that loads the author's learner and the data, and trains
  work/selfcheck.py     the learner tried on the data before any work
  net/rpc.py            the calls of a device over gRPC
"""

from shoal import __version__

SOFTWARE = f"shoal fedclient {__version__}"
