"""Who a device is: join strings, proofs, keys and certificates, made with the package `cryptography`.

    operator -- join string --> owner -- `fedclient join` --> key made on the device, proof, request
                                                          <-- certificate that names the device

Pure: bytes to bytes. The chain of trust, the tokens and the table of roles are the server's
(`fedserver.authority`); where keys lie on a device is the client's.
"""
