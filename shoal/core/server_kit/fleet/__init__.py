"""A statistical model of a fleet: which devices' data come from the same group, from their descriptors.

A device's descriptor gives, for each class, the mean and the deviation of its latents, and the number of
samples. The model explains the difference between two descriptors in four ways:

    sampling     a mean of n samples scatters by variance / n, a deviation and a share likewise
    noise        the privacy noise of a release, whose variance is known
    its own      the devices of a group are not quite alike (writers, rooms, dependent samples). This effect
                 is estimated, and for means it is bounded: differences beyond the bound are groups
    groups       everything else

A partition of the devices is scored by the probability of all descriptors under it. A group's mean is
integrated out, so each further group pays for what it may explain, and a difference must be large enough to
be worth a group. There are no comparisons of pairs: the work grows with devices times groups. All scales are
robust estimates, so one device cannot change what counts as different among the others.

The search is deterministic, and its result does not depend on the order of the devices.

    evidence     descriptors as numbers that can be compared, and the variances of their errors
    model        the scales of a fleet, and the score of a partition
    search       the partition with the best score that splits, moves and merges lead to

Example:

    labels = groups([first, second, third])     # array([0, 1, 0])
"""

from shoal.core.server_kit.fleet.search import groups, joined

__all__ = ["groups", "joined"]
