"""Secure aggregation: the server learns the sum over a cohort of devices, and no device's part of it.

shamir       a secret in shares, of which a threshold gives it back
masks        keys, sealed letters, and the mask that a key expands to
cohort       who takes part: signed announcements, and the manifest that all of them see
member       what a device does in the four exchanges
opening      what takes the masks off a sum, for that list of survivors only that a threshold of devices saw
total        what the server does with what it got
fixed_point  updates as whole numbers of 32 bits, and back

The protocol is that of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning,
CCS 2017, with signed keys, and with openings in place of its consistency round. docs/proofs.md has a proof,
and says what it protects against, and what it does not. Everything here is pure: randomness comes from the
caller, and nothing is stored.
"""
