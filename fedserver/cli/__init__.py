"""The command line of the server, one verb a module."""
