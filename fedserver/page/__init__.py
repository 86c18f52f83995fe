"""The live page: a read-only web page of the fleet, for the operators of a server.

It is a process of its own, `fedserver page`, which asks the server by the operators' socket, as the command
line does. The server has no web code, and goes on whatever happens to the page.

`access` decides who may look, `guard` checks every request, `feed` asks the server (through
`asking`, which `source` describes), `views` turn its answers into what the browser draws, `static` has the
page itself, and `files` serves it.
"""
