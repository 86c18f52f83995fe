"""Checksums of rows, second copies, and what is saved from damage."""
