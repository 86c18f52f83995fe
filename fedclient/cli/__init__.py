"""What the verbs of a device print."""
