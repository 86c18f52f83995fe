"""What is decided about a call before its message is read: who calls, and whether there is room."""
