"""What operators see and ask for, as messages of the contract."""
