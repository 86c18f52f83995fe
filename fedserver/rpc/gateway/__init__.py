"""Gateways: processes that end devices' TLS connections, and bring their calls to the server in batches.

carrying   the server's side: calls of many devices on one stream, and the registry that gateways follow
brain      a gateway's side: its connections to the server that leads
stream     a gateway's side: one stream of calls
following  a gateway's side: the registry, as far as it has heard of it
proxy      what devices call at a gateway
process    the process of a gateway
folder     what a gateway needs on its disk
"""
