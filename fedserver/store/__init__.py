"""What lasts: the database, the blobs, and what is kept of them for people."""
