"""This version beside the one before: mixed fleets, upgrades in the middle of a run, and the way back.

`reference.py` names the commit that stands for the version before, and installs it. `test_versions.py` runs
both; `test_stopped_run.py` opens what a server and devices of that commit have left in `stopped_run.tar.gz`.
For another commit, change `COMMIT` and record that file again:

    python -m tests.compat
"""
