"""Who may call, and how they got there: the certificate authority, the registry of devices, the audit log.

issuing     certificates, made of keys and names             chain       lines of the audit log
files       keys on disk                                     audit       the log itself, in every transaction
roots       the authority: which root signs, which are       tokens      what admits a device once
            trusted, the server's own certificate            registry    devices and their certificates
enrolment   challenge, join, rejoin, renew                   permissions {role x RPC}, default deny
keeper      who calls now, and cutting off who may not       office      what operators ask for
gaps        what a restored registry may take up again

Nothing here knows gRPC; `fedserver.rpc.auth_interceptor` asks the keeper at every call.
"""
