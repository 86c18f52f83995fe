"""The pure core of Shoal: it takes events and returns effects; no sockets, files, clock or environment.

Where to look first:
  engine/rounds.py     the round engine, the one place where a run moves on
  engine/simulate.py   the main loop over an algorithm and its devices, in one process
  algorithm/           what an algorithm is: four functions on the server, one on the device
  algorithms/          one folder for each algorithm
"""
