"""Files by the hash of their content."""
