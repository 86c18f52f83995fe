"""Identities: tokens, the registry of devices, their admission, the audit log and the restore gap."""
