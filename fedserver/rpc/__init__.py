"""The server's gRPC: a request is decoded, handed to the coordinator or the authority, and answered.

device      what devices call             server            ports, sockets, and what is served there
blobs       what moves blobs              tls               certificates that the ports show and ask for
operators   what operators call; also     client            the operators' side
            releases, authorities         channel           how an operator's program reaches a server
admission   who may call, and how much    errors            what an error looks like from outside
wire        requests and answers          edge              a place to disturb devices' calls, for tests

Nothing is decided here except who is calling and what an error looks like. A new call touches four files: the
contract in `proto/fed/v1` (with the roles that may make it), the servicer, the client, and a test.
"""
