"""Identities: tokens, keys and their admission, the keys that hold no more, and the audit log."""
