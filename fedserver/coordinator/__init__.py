"""All runs and devices of a server, and what each may ask of it."""
