"""The server's state folder: the database, the blobs, and the records that operators read."""
