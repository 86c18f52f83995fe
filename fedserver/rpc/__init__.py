"""The server's gRPC, all of it: what comes in is decoded, handed to the coordinator, and answered.

Nothing is decided here, except who is calling (`identity`) and what an error looks like from outside
(`errors`).
"""
