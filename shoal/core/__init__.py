"""The pure core of Shoal: it takes events and returns effects; no sockets, files, clock or environment.

Where to look first:
  rounds.py      the round engine, the one place where a run moves on
  algorithm.py   what an algorithm is: four functions on the server, one on the device
  simulate.py    the main loop over both, in one process
  algorithms/    one folder for each algorithm
"""
