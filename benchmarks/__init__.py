"""Programs that measure speed, memory and what privacy leaves: `python -m benchmarks.NAME`."""
