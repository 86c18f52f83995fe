"""What happens to a descriptor before it may leave a device. Numpy alone: no torch, no clock, no files."""
