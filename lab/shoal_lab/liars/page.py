"""docs/liars.md: the campaign's table, for people."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from shoal_lab.liars.attacks import ATTACKS
from shoal_lab.liars.campaign import ABSENT, ALLOWED, HONEST, PRIVATE, SETTINGS, Case
from shoal_lab.liars.trial import BESIDE, SAMPLES, Found

HEAD = """# Liars: what one device can do to the others

This page is written by `make liars`. Each cell is a small real fleet: rotated digits, {samples} samples on
each device, a cluster of the given size with one liar in it, and {beside} devices of another group. Updates
are combined by the default rule, `clipped`. Settings: {settings}. Seeds:
{seeds}. In rows marked "private", descriptors are released with epsilon {epsilon:g}.

- **honest**: mean accuracy of the honest devices, in percent, if the liar were honest, too. In rows of size
  2 only the other group counts: of two updates no one can tell which is false.
- **absent**: the same without the liar. A rule that leaves the liar out can reach this and no more.
- **worst**: the same under the worst of the attacks below, named under **by**.
- **lost**: what that attack costs against the lower one of *honest* and *absent*; bold above {allowed:g}
  points.
- **attacks**: how many of the ten were tried in this row.
- **ARI**: how well the clusters of the honest devices agree with their groups, without the liar and under
  the attack that disturbs them most; 0 where there is one model for all, or one for each device.

CFL, CORNFLQS, FedGroup, FeSEM, FL+HC and oneshot form clusters by updates or models, so a liar's update can
change who belongs together. They set an update aside that is unlike all others, but one of the usual length
in a direction of its own looks like that of honest devices with unusual data, and gets a cluster. Where the
number of clusters is given (IFCA and PACFL, too), the others then share one cluster less, which costs most
in fleets as small as these. IFCA's liar can also spoil a model that only one honest device has chosen in the
first round, after which no device chooses it. HACCS trains by few chosen devices, of which a liar is a large
part. In rows of size 2 the liar is one of five devices, of which FedEM, FedRC, SRFCA and, with privacy, FMCL
do not find the groups even without it. For a fleet with devices that no one can vouch for, use an algorithm
that has no bold rows here.

| attack | what the liar reports |
|---|---|
{attacks}

| algorithm | size | attacks | honest | absent | worst | lost | by | ARI absent | ARI worst |
|---|---|---|---|---|---|---|---|---|---|
"""


def page(known: Mapping[Case, Found]) -> str:
    """The page of these trials; of a case that was tried with several seeds, the means."""
    seeds = sorted({case.seed for case in known})
    head = HEAD.format(
        samples=SAMPLES,
        beside=BESIDE,
        settings=", ".join(f"`{name}={value}`" for name, value in SETTINGS.items() if name != "privacy"),
        seeds=", ".join(map(str, seeds)),
        epsilon=PRIVATE["epsilon"],
        allowed=ALLOWED,
        attacks="\n".join(f"| {name} | {attack.meaning} |" for name, attack in ATTACKS.items()),
    )
    groups = sorted({(case.algorithm, case.private, case.size) for case in known})
    return head + "\n".join(_row(known, *group) for group in groups) + "\n"


def _row(known: Mapping[Case, Found], algorithm: str, private: bool, size: int) -> str:
    own: dict[str, list[Found]] = {}
    for case, found in known.items():
        if (case.algorithm, case.private, case.size) == (algorithm, private, size):
            own.setdefault(case.attack, []).append(found)
    accuracy = {attack: fmean(each.accuracy for each in all_) for attack, all_ in own.items()}
    ari = {attack: fmean(each.ari for each in all_) for attack, all_ in own.items()}
    attacks = [attack for attack in accuracy if attack in ATTACKS]
    name = f"{algorithm} (private)" if private else algorithm
    if not attacks or not {HONEST, ABSENT} <= set(accuracy):
        return f"| {name} | {size} | {len(attacks)} |" + " |" * 7
    worst = min(attacks, key=lambda attack: accuracy[attack])
    lost = min(accuracy[HONEST], accuracy[ABSENT]) - accuracy[worst]
    shown = f"**{lost:.1f}**" if lost > ALLOWED else f"{lost:.1f}"
    cells: Sequence[str] = (
        name,
        str(size),
        str(len(attacks)),
        f"{accuracy[HONEST]:.1f}",
        f"{accuracy[ABSENT]:.1f}",
        f"{accuracy[worst]:.1f}",
        shown,
        worst,
        f"{ari[ABSENT]:.2f}",
        f"{min(ari[attack] for attack in attacks):.2f}",
    )
    return f"| {' | '.join(cells)} |"
