"""What is recorded about runs for people."""
