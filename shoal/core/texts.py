"""Phrases that many sentences share."""

from collections.abc import Sequence


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are.

    Example:
        >>> listed(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def percent(share: float | None) -> str:
    """A share, "-" if it is not known."""
    return "-" if share is None or share != share else f"{100 * share:.1f} %"


def measure(numbers: bool) -> str:
    """The name of the share that devices measure. numbers: whether labels are numbers."""
    return "variance explained" if numbers else "accuracy"


def plural(count: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> plural(1, "device"), plural(2, "device")
        ('1 device', '2 devices')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def span(seconds: float | None) -> str:
    """A length of time, "-" if it is not known.

    Example:
        >>> span(90.0), span(7200.0)
        ('90 s', '2 h')
    """
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
