"""This device's identity: joining a federation, storing the key, and keeping the certificate valid.

    join string --> join --> keyring: identity.json --> SecureLink --renew, in time--> keyring
                                                                   --rejoin, too late--> keyring

A certificate request is on the disk, with its key, before it is sent, and the same request is sent until it
is answered; the answer then replaces the old identity in one step. The process may therefore end between any
two steps, and repeating the command repairs it. No decision depends on this device's clock.
"""
