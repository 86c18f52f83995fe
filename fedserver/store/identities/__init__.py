"""The registry: tokens, devices, certificates, and the audit log of what happened to them."""
