"""How a device reaches its server."""
