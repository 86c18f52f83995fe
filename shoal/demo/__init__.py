"""The whole system on one machine: a server, eight trainers and two newcomers."""
