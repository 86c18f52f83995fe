"""What the programs share: settings files, the command line's envelope, durable files. The core uses none of
it."""
