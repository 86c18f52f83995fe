"""What the two sides say to each other: messages, their parts, and their form on the wire."""
