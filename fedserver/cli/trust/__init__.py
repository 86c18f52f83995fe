"""`fedserver authority`, `token` and `audit`: who may join, and what was done."""
