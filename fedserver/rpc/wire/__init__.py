"""What operators are told, as messages of the contract."""
