"""The devices of a simulation: their work, in this process or in workers, and what is recorded of it."""
