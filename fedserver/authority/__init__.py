"""Who may call: the certificate authority, how devices join, what operators do.

issuing        certificates, created from keys and names     permissions    which role may make which call
roots          the authorities' keys on disk; which signs    peers          the registry in memory
joining        challenge, join, rejoin, renew                authority_api  what operators ask for
rate_limit     limits for each of many callers               model_quota    what newcomers may have in a day
setup          `fedserver init`                             answers        what operators are answered

Nothing here knows gRPC; `fedserver.rpc.admission.authorization` asks `peers` at every call. The registry
and the audit log on disk are in `fedserver.store.identities`.
"""
