"""Which rules of the contract a device keeps, found by a real server that is disturbed at its edge."""
