"""What operators read: devices, traffic, releases, logs, and histories of runs. No run depends on it."""
