"""Who may call: keys, how devices join and come back, what operators do.

authority      the server's own key                      permissions    which role may make which call
issuing        certificates, created from keys           peers          the registry in memory
joining        challenge, join, return                   authority_api  what operators ask for
rate_limit     limits for each of many callers           daily_quota    what newcomers may have in a day
setup          `fedserver init`                          answers        what operators are answered

Nothing here knows gRPC; `fedserver.rpc.admission.authorization` asks `peers` at every call. The registry
and the audit log on disk are in `fedserver.store.identities`.
"""
