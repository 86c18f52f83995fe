"""Whether a release is what the server's key has signed, as an operator's program finds it."""

import json

from fedserver.coordinator.status_types import ReleaseStatus
from fedserver.store.releases import PURPOSE
from shoal.core.errors import NotGenuine
from shoal.core.identity.certificates import certificate
from shoal.core.identity.signing import check_signed


def check(found: ReleaseStatus) -> str:
    """Who signed a release, in words. Raises NotGenuine if its card is not what was signed, or if its models
    are not those that the card names for their clusters."""
    spec, name = found.status.spec, found.summary.release
    given = {key: weights.blob.sha256 for key, weights in found.status.models.items()}
    try:
        card = json.loads(found.card)["value"]
        named = {key: each["blob"]["sha256"] for key, each in card["models"].items()}
        known = card["release"], named, card["spec"]["graph"]
    except (ValueError, TypeError, KeyError, AttributeError):
        known = "", {}, ""
    if known != (name, given, spec.graph if spec else ""):
        raise NotGenuine(f"the models or the graph of {name} are not those that its card names")
    if not found.signature:
        return "not signed: the server had no certificates"
    signer = found.summary.authority
    check_signed(certificate(found.certificate), signer, found.signature, PURPOSE + found.card)
    return f"signed by key {signer}"
