"""What both shells share: the command line's envelope, and durable files. Nothing in the core uses it."""
