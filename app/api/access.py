"""Lets a request through when it has a key of the ring, before anything of its body is read."""

from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.context import error_response, exchange_of
from app.auth.keyring import Keyring
from app.auth.keys import Key
from app.errors import Unauthorized

# Kubernetes has no key.
PROBES: Final = frozenset({"/livez", "/readyz", "/health"})

_SCHEME: Final = b"bearer"


class Access:
    """Middleware inside the request context; everything but the probes needs a key."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self.app = app
        self.keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) in PROBES:
            await self.app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        try:
            exchange.key = self._key(HTTPConnection(scope))
        except Unauthorized as error:
            exchange.code = error.code
            await error_response(error, scope["path"])(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _key(self, connection: HTTPConnection) -> Key:
        presented = presented_keys(connection.headers.raw)
        if not presented:
            raise Unauthorized(
                "An API key is needed: send `Authorization: Bearer <key>` or `X-Api-Key: <key>`."
            )
        if len(presented) > 1:
            raise Unauthorized("The request has different API keys; send one.")
        key = self.keyring.ring.find(presented.pop())
        if key is None:
            raise Unauthorized("The API key is not valid.")
        return key


def route_path(scope: Scope) -> str:
    """The path as the router sees it, without the prefix that a proxy did not strip."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def presented_keys(headers: list[tuple[bytes, bytes]]) -> set[bytes]:
    """The keys that a request has, in either header; the names of headers are lower case."""
    found = {value.strip() for name, value in headers if name == b"x-api-key"}
    for name, value in headers:
        scheme, _, credentials = value.strip().partition(b" ")
        if name == b"authorization" and scheme.lower() == _SCHEME:
            found.add(credentials.strip())
    return found - {b""}
