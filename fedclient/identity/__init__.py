"""Who this device is: how it joins a federation, where its key lies, and how its certificate is kept valid.

    join string --> join --> keyring: identity.json --> SecureLink --renew, in time--> keyring
                                                                   --rejoin, too late--> keyring

A request for a certificate is on the disk, with its key, before it is sent, and the same request is sent
until it is answered; the answer takes the place of the old identity in one step. So the process may end
between any two steps, and doing the same again is the repair. Nothing is decided by this device's clock.
"""
