"""This device's identity, which is its key: joining a federation, storing the key, and coming back.

    join string --> join --> keyring: identity.json --> SecureLink --return, when refused--> keyring

A certificate request is on the disk, with its key, before it is sent, and the same request is sent until it
is answered; the answer then replaces the old identity in one step. The process may therefore end between any
two steps, and repeating the command repairs it. Nothing depends on a clock.
"""
