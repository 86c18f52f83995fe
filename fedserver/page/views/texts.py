"""Texts of strangers, made safe to show, and short."""

import hashlib
import unicodedata

NAME = 64
"""The most characters of a name that are shown."""
TEXT = 400
"""The most characters of any other text that are shown."""
UNSEEN = ("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp")
"""Unicode categories of characters that are not seen, or that change how others are seen."""


def name(text: str) -> str:
    """A device's name, or another name, as it is shown, and by which the views know it.

    Two names that differ stay different: one that is cut ends with a part of its hash.

    Example:
        >>> name("ward-7"), name("a\\u202eb\\n")
        ('ward-7', 'a\\\\u202eb\\\\u000a')
    """
    shown = escaped(text[: NAME + 1])
    if len(text) <= NAME and len(shown) <= 2 * NAME:
        return shown
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{shown[:NAME]}\u2026{digest[:8]}"


def words(text: str) -> str:
    """Any other text, in one line."""
    shown = escaped(" ".join(text[: TEXT + 1].split()))
    return shown if len(shown) <= TEXT else f"{shown[:TEXT]}\u2026"


def escaped(text: str) -> str:
    """The text with the characters of `UNSEEN` as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"\\u{ord(each):04x}" if unicodedata.category(each) in UNSEEN else each for each in text)
