"""What a device does on a visit: it takes tasks, moves models, and reports."""
