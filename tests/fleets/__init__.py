"""Fleets in virtual time: the real round engine and the real server halves, and devices that work, stall, die
and return, as they please. Nothing waits, so a thousand devices and a hundred rounds take seconds."""
