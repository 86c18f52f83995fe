"""The agent of a device: its work, what it reports, and how it runs as a service."""
