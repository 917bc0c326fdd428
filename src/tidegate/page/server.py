"""The server of a page: on the loopback interface, behind a token, for its own origin only.

Every request passes one guard: its Host must be a loopback name, so that no foreign name can be
made to resolve here; its method must be GET or HEAD, as no request changes anything; an Origin must
be that of the page itself, so that no other site can open its web socket; and it must show the
cookie of the page, or the token as `Authorization: Bearer`. The address that is printed carries the
token; opening it sets the cookie and leads to the page without it, so that the token stays out of
the history of the browser. Requests are not logged.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import threading
from typing import Any, Self
from urllib.parse import urlsplit

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.resources import Resources
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.server.views.static_handler import StaticHandler
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.web import OutputTransform, RequestHandler

from tidegate.errors import SetupError
from tidegate.page.document import document
from tidegate.page.feed import Feed, Reading
from tidegate.page.timeline import Timeline

INTERVAL = 1.0
"""The time between two readings of the feed, in seconds."""
_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_ADDRESS = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Page:
    """The live page of a feed, served by a thread of this process until `stop`."""

    def __init__(self, feed: Feed, *, port: int = 0) -> None:
        self._feed, self._port = feed, port
        self._token, self._cookie = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.timeline = Timeline()
        self._stopping = threading.Event()
        self._loop: IOLoop | None = None
        self._threads: list[threading.Thread] = []

    def __repr__(self) -> str:
        return f"Page({self.address!r})"

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noreferrer">{self.address}</a>'

    @property
    def address(self) -> str:
        """The address of the page, without the token."""
        return f"http://{_ADDRESS}:{self._port}/"

    @property
    def url(self) -> str:
        """The address with the token: whoever opens it may read the page."""
        return f"{self.address}?token={self._token}"

    def start(self) -> Self:
        """Start to read the feed and to serve the page."""
        listening = socket.socket()
        try:
            listening.bind((_ADDRESS, self._port))
            listening.listen()
        except (OSError, OverflowError, TypeError) as error:
            listening.close()
            raise SetupError(
                f"the page cannot use the port {self._port}: {error}. Hint: port=0 takes a free one"
            ) from error
        listening.setblocking(False)
        self._port = listening.getsockname()[1]
        # The first warns of each message to a tab that was closed meanwhile.
        logging.getLogger("bokeh.server.views.ws").setLevel(logging.ERROR)
        logging.getLogger("bokeh.server.tornado").setLevel(logging.WARNING)
        started = threading.Event()
        self._run("page", lambda: self._serve(listening, started))
        started.wait()
        self._run("page-feed", self._follow)
        return self

    def stop(self) -> None:
        """Stop the server and the reading; a second call does nothing."""
        self._stopping.set()
        if self._loop is not None:
            self._loop.add_callback(self._loop.stop)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the page is stopped, at most `seconds`; return whether it is."""
        return self._stopping.wait(seconds)

    def _run(self, name: str, work: Any) -> None:
        thread = threading.Thread(target=work, name=f"tidegate-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _follow(self) -> None:
        """Read the feed again and again."""
        while True:
            try:
                reading = self._feed.read()
            except Exception as error:  # noqa: BLE001 - the page shows any error and goes on
                reading = Reading(None, error=f"{type(error).__name__}: {error}")
            self.timeline.add(reading)
            if self._stopping.wait(INTERVAL):
                return

    def _serve(self, listening: socket.socket, started: threading.Event) -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        self._loop = IOLoop.current()
        application = Application(
            FunctionHandler(lambda doc: document(doc, self.timeline, self._feed))
        )
        guarded = _GuardedTornado(
            {"/": application},
            tokens=(self._token, self._cookie),
            cookie=f"tidegate-{self._port}",
            absolute_url=self.address,
            # The guard compares origins; this list could be widened from the environment.
            extra_websocket_origins=["*"],
            sign_sessions=True,
            secret_key=secrets.token_urlsafe(32).encode(),
            include_headers=[],
            include_cookies=[],
            unused_session_lifetime_milliseconds=5000,
            check_unused_sessions_milliseconds=2000,
            log_function=lambda _: None,
        )
        guarded.add_transform(_Headers)
        http = HTTPServer(guarded)
        server = BaseServer(self._loop, guarded, http)
        http.add_sockets([listening])
        server.start()
        started.set()
        self._loop.start()
        server.stop()
        http.stop()
        self._loop.run_sync(http.close_all_connections)
        self._loop.close()


class _GuardedTornado(BokehTornado):  # type: ignore[misc]
    """Bokeh's application behind the guard, with its own assets only."""

    def __init__(
        self, applications: Any, *, tokens: tuple[str, str], cookie: str, **options: Any
    ) -> None:
        super().__init__(applications, **options)
        self._token, self._cookie, self._cookie_name = *tokens, cookie

    def resources(self, absolute_url: Any = None) -> Resources:  # noqa: ARG002
        """The assets of this server, whatever the environment says."""
        return Resources(
            mode="server",
            root_url="/",
            components=["bokeh", "bokeh-widgets"],
            path_versioner=StaticHandler.append_version,
        )

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        """The handler of a request that the guard lets through, or its refusal."""
        problem = self._problem(request)
        if problem:
            return self.get_handler_delegate(request, _Refused, {"reason": problem})
        if request.path == "/" and "token" in request.arguments:
            cookie = (self._cookie_name, self._cookie)
            return self.get_handler_delegate(request, _Entrance, {"cookie": cookie})
        return super().find_handler(request, **options)

    def _problem(self, request: HTTPServerRequest) -> str:
        """Why a request is refused; empty if it is not."""
        host = request.headers.get("Host", "")
        if _hostname(host) not in _HOSTS:
            return "this page answers under a loopback name only"
        if request.method not in {"GET", "HEAD"}:
            return "this page is read-only"
        origin = request.headers.get("Origin")
        is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
        if (is_socket and origin is None) or (
            origin is not None and urlsplit(origin).netloc.lower() != host.lower()
        ):
            return "another origin cannot use this page"
        if not self._is_known(request):
            return "open the address with the token that `tidegate` has printed"
        return ""

    def _is_known(self, request: HTTPServerRequest) -> bool:
        given = request.cookies.get(self._cookie_name)
        if given is not None and _same(given.value, self._cookie):
            return True
        kind, _, bearer = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(bearer.strip(), self._token):
            return True
        tokens = request.arguments.get("token", [])
        return (
            request.path == "/"
            and len(tokens) == 1
            and _same(tokens[0].decode("utf-8", "replace"), self._token)
        )


def _same(given: str, secret: str) -> bool:
    """Whether a text is the secret, in constant time."""
    return hmac.compare_digest(given.encode(), secret.encode())


def _hostname(host: str) -> str:
    """The name in a Host header, without the port."""
    name = host.lower()
    return (
        name[: name.index("]") + 1] if name.startswith("[") and "]" in name else name.split(":")[0]
    )


class _Refused(RequestHandler):
    """The answer to a request that the guard stops."""

    def initialize(self, reason: str) -> None:
        self._text = reason

    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"403: {self._text}\n")


class _Entrance(RequestHandler):
    """Exchanges the token in the address for a cookie, and leads to the page without it."""

    def initialize(self, cookie: tuple[str, str]) -> None:
        self._cookie = cookie

    def get(self) -> None:
        name, value = self._cookie
        self.set_header("Set-Cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Lax")
        self.redirect("/", status=303)

    head = get


class _Headers(OutputTransform):
    """Adds headers to every response: no caching, no frames, no foreign assets."""

    def transform_first_chunk(
        self,
        status_code: int,
        headers: HTTPHeaders,
        chunk: bytes,
        finishing: bool,  # noqa: ARG002, FBT001 - Tornado's signature
    ) -> tuple[int, HTTPHeaders, bytes]:
        for name, value in _HEADERS.items():
            headers[name] = value
        return status_code, headers, chunk
