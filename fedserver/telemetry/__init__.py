"""What a server tells of itself to other programs: metrics, traces, and lines of the log."""
