"""Recovery after a restart, and what is done about damage while the server is up."""
