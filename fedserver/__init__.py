"""The coordinator daemon: keeps what the core decides on disk, and talks to devices and operators."""
