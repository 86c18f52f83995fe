"""A small real fleet for tests: rotated digits on devices that take turns in one small network."""

from shoal.checks.small_fleet import contexts, data, first_model, fleet, halved, learner

__all__ = ["contexts", "data", "first_model", "fleet", "halved", "learner"]
