"""What holds for every request, before any other code of the page sees it.

The page is served on the loopback interface, where every website that the operator visits can try to reach it
by the browser. So a request needs the name of the loopback interface as its host, since another name is that
of a website that points its own address here (DNS rebinding); it must not come from another site; and it
needs a session.
Answers forbid the browser all that the page does not need.
"""

import time
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedserver.addresses import host_of
from fedserver.page.access import Access

HOSTS = ("127.0.0.1", "localhost", "[::1]")
OPEN = "/open/"
"""What a link leads to, followed by the link itself."""
PUBLIC = (OPEN, "/static/", "/favicon.ico")
"""Paths that need no session; none of them has anything of the fleet."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
CLOSED = """This page needs a link that is valid once. Get one on the machine of the server:

    fedserver page --link --state DIR
"""


class Guard:
    """Around the application: refuses requests, and adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp, access: Access, cookie: str) -> None:
        self._app, self._access, self._cookie = app, access, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "no-store")
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if scope["type"] == "http":
            answer = self._refusal(scope) or self._app
            await answer(scope, receive, protected)
        else:  # a websocket, of which the page has none
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("The page is read-only.\n", 405, {"Allow": "GET, HEAD"})
        if host_of(headers.get("host", "")) not in HOSTS:
            return PlainTextResponse("This address is not one of the page's.\n", 421)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _opens(headers, path):
            return PlainTextResponse("Another website may not read the page.\n", 403)
        if not path.startswith(PUBLIC) and not self._access.admits(self._session(headers), time.time()):
            return PlainTextResponse(CLOSED, 401)
        return None

    def _session(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found else ""


def _opens(headers: Headers, path: str) -> bool:
    """Whether the operator follows a link to the page, in a mail for example: that may come from anywhere."""
    return headers.get("sec-fetch-mode") == "navigate" and (path == "/" or path.startswith(OPEN))
