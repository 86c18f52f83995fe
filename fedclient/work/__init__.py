"""Where a device's tasks are done: a process of its own, learner and data."""
