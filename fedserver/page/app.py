"""The web application: the page, its files, the link that opens it, and the stream of events."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fedserver.page.access import SESSION_SECONDS, Access
from fedserver.page.feed import FLEET, Event, Feed
from fedserver.page.files import ROOT, Files
from fedserver.page.guard import OPEN, Guard

VIEWERS = 32
"""How many streams of events are open at a time."""
STALLED = 30.0
"""Seconds after which a viewer that takes no more bytes is cut off."""
OPENED = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Shoal</title>
<link rel="icon" href="/static/mark.svg"><meta http-equiv="refresh" content="0;url=/">
<p><a href="/">Open the page</a></p></html>
"""
USED = "This link was used before, or its time is up. Get another: fedserver page --link\n"


def application(feed: Feed, access: Access, cookie: str) -> Guard:
    """The whole page. cookie: the name of the cookie that has the session."""
    viewers = asyncio.Semaphore(VIEWERS)

    files = Files()
    index = files.page()

    async def page(request: Request) -> Response:
        return HTMLResponse(index)

    async def static(request: Request) -> Response:
        return files.answer(request.url.path)

    async def opened(request: Request) -> Response:
        """Trade a link for a session. The answer is a page and no redirect: a browser that comes from another
        site, such as a web mail, would follow a redirect without the cookie.

        A preview of the link, which asks for the head only, spends nothing and is given nothing.
        """
        if request.method == "HEAD":
            return HTMLResponse()
        session = access.trade(request.path_params["link"], time.time())
        if session is None:
            return PlainTextResponse(USED, 401)
        answer = HTMLResponse(files.linked(OPENED))
        answer.set_cookie(
            cookie, session, max_age=int(SESSION_SECONDS), path="/", httponly=True, samesite="strict"
        )
        return answer

    async def events(request: Request) -> Response:
        if viewers.locked():
            return PlainTextResponse(f"{VIEWERS} views of the page are open already.\n", 503)
        run, last = request.query_params.get("run", FLEET), request.headers.get("last-event-id", "")
        return Stream(feed.follow(run, last), viewers)

    return Guard(
        Starlette(
            routes=[
                Route("/", page),
                Route(OPEN + "{link}", opened),
                Route("/events", events),
                Route(ROOT + "{path:path}", static),
            ]
        ),
        access,
        cookie,
    )


class Stream(Response):
    """Server-sent events, as fast as their reader takes them."""

    def __init__(self, events: AsyncIterator[Event], places: asyncio.Semaphore) -> None:
        super().__init__(media_type="text/event-stream")
        self._events, self._places = events, places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._places:
            sending = asyncio.create_task(self._send(send))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        del self.headers["content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with suppress(TimeoutError):
            async with aclosing(self._events) as events:  # type: ignore[type-var]
                async for event in events:
                    body = {"type": "http.response.body", "body": event.encoded(), "more_body": True}
                    await asyncio.wait_for(send(body), STALLED)


async def _left(receive: Receive) -> None:
    """Return when the viewer has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
