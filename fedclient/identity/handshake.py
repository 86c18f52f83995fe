"""Why a connection did not come about, out of what the library says of it; the tests hold it to its words."""

from enum import Enum


class Cause(Enum):
    """What keeps two sides from shaking hands."""

    OTHER_NAME = "the certificate is for another name than the one that was called"
    OTHER_AUTHORITY = "the certificate is not of an authority that this device trusts"
    OUT_OF_TIME = "the certificate is not good at what this device's clock says"
    NO_TLS = "the other side speaks no TLS"
    CUT = "the other side saw our certificate and hung up"


WORDS = (
    ("Hostname Verification Check failed", Cause.OTHER_NAME),
    ("certificate has expired", Cause.OUT_OF_TIME),
    ("certificate is not yet valid", Cause.OUT_OF_TIME),
    ("CERTIFICATE_VERIFY_FAILED", Cause.OTHER_AUTHORITY),
    ("certificate signature failure", Cause.OTHER_AUTHORITY),
    ("WRONG_VERSION_NUMBER", Cause.NO_TLS),
    ("Socket closed", Cause.CUT),
    ("Connection reset by peer", Cause.CUT),
    ("Broken pipe", Cause.CUT),
)
"""The first that is found counts."""


def cause_of(details: str) -> Cause | None:
    """details: of a call that found no connection. None: nobody is there, or it is another trouble."""
    if "failed to connect to all addresses" not in details:
        return None
    return next((cause for words, cause in WORDS if words in details), None)
