"""The laboratory: the papers' tables, data sets that are made to differ, fifteen baselines, and liars.

    import shoal
    from shoal_lab import datasets, fleets

    fleet = fleets.px(datasets.digits(), level=5, devices=10)
    shoal.simulate("pacfl", fleet)

It is a distribution of its own, `shoal-lab`. Installed beside `shoal-fed`, it adds its algorithms to those
that `fedserver algorithm ls` lists, the verb `fedserver table`, and the options of `fedserver simulate` that
make fleets of one data set.
"""

__version__ = "0.2.0"
