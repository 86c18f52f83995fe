"""The server's gRPC: a request is decoded, handed to the coordinator or the authority, and answered.

device      what devices call             server            ports, sockets, and what is served there
blobs       what moves blobs
operator    what operators call           tls               certificates that the ports show and ask for
client      the operators' side           authorization     who may make a call
identity    who is calling                limits            how many calls at a time, and how often
messages    requests and answers          errors            what an error looks like from outside
connections which ones to close           attention         what operators should know of a port
channel     how an operator's program reaches a server
operator_wire, authority_wire

Nothing is decided here except who is calling and what an error looks like. A new call touches four files: the
contract in `proto/fed/v1` (with the roles that may make it), the servicer, the client, and a test.
"""
