"""Real servers and devices under real faults: `python -m tests.chaos --runs 100 --seed 42 --out runs/chaos`.

work.py       what the fleet works at, and which models must come out of it
programs.py   a process that is started again whenever it ends, as an init system would
device.py     `fedclient` that also writes down every receipt
proxy.py      the network between a device and the server, which can be slow, cut or damaged
fleet.py      one server, its devices, and how they are joined
trial.py      one run of the fleet: the moments of its faults, and what was seen
checks.py     what must be so afterwards
kinds/        the faults
campaign.py   many trials; report.py: the table and chaos.json
"""
