"""The control endpoints on aiohttp, a transport for `router/control/control.py`.

`router/control/control_gate.py` parses requests first, as strictly as a worker does, so aiohttp sees only
unambiguous requests. A request that aiohttp still refuses receives an error in our format.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from router.control.control import JSON_TYPE, METRICS_TYPE, ControlAnswer, ControlEndpoints, refusal_answer
from shared.contract.api_keys import ApiKeys
from shared.contract.endpoints import Match, refuse_body, refuse_parameters, resolve
from shared.contract.errors import INVALID_REQUEST, NOT_IMPLEMENTED, Refusal
from shared.http.cors import Origins
from shared.http.gzip_answer import COMPRESSED_BYTES_MIN, accepts_gzip, compress, gzip_fields
from shared.http.head import BLOCK_BYTES_MAX, LINE_BYTES_MAX, RequestLine, parse_line
from shared.runtime.unexpected_error import refuse_unexpected_error

if TYPE_CHECKING:
    from router.control.control_gate import ControlGate

logger = logging.getLogger(__name__)

# The gate closes idle connections, so aiohttp must not.
_KEEPALIVE_SECONDS: Final = 3600.0
HAS_BODY: Final = "x-topicsd-body"
"""The header field that the gate adds to the head of a request with a body."""
_CLOSE: Final = "close"
_KEEP_ALIVE: Final = "keep-alive"

_encode = msgspec.json.Encoder().encode


class ControlHandler(RequestHandler):
    """One connection inside aiohttp; it notifies its gate when a response is written."""

    __slots__ = ("gate",)

    gate: ControlGate

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status < 500:
            refusal = Refusal(INVALID_REQUEST, (message or "the request is malformed").splitlines()[0])
        else:
            refusal = refuse_unexpected_error(logger, "the control application", exc)
        response = _response(refusal_answer(refusal), _CLOSE, cors=self.gate.cors)
        response.force_close()
        return response


class ControlApp:
    def __init__(
        self, control: ControlEndpoints, keys: ApiKeys, probes_need_key: bool, origins: Origins
    ) -> None:
        self._control = control
        self.origins = origins
        self.keys = keys
        """Read for each request, so that a reload can replace them."""
        self._probes_need_key = probes_need_key
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        # Workers do not send the Server and Date fields of aiohttp either.
        app.on_response_prepare.append(_without_signature)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, handler_cancellation=True)

    async def start(self) -> None:
        await self._runner.setup()

    async def close(self) -> None:
        await self._runner.cleanup()

    def make_handler(self, gate: ControlGate) -> ControlHandler:
        server = self._runner.server
        assert server is not None, "the application is not started"
        handler = ControlHandler(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=_KEEPALIVE_SECONDS,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=BLOCK_BYTES_MAX,
        )
        handler.gate = gate
        return handler

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert isinstance(request.protocol, ControlHandler)
        gate = request.protocol.gate
        try:
            answer = await self._answer(request)
        except Exception as error:  # unexpected errors are answered with 500
            answer = refusal_answer(refuse_unexpected_error(logger, "the control application", error))
        closes = answer[0] == 500 or gate.is_last
        connection = _CLOSE if closes else _KEEP_ALIVE if gate.is_http_1_0 else ""
        response = _response(answer, connection, request.headers.get("accept-encoding", ""), gate.cors)
        await response.prepare(request)
        await response.write_eof()
        gate.on_answered(closes)
        return response

    def refusal(self, line: RequestLine, authorization: bytes | None) -> Refusal | None:
        """Return the refusal of a request that is refused whatever its body is, or None."""
        match = resolve("GET" if line.method == "HEAD" else line.method, line.path)
        allowed = match if isinstance(match, Refusal) else self._allowed(match, authorization)
        return allowed if isinstance(allowed, Refusal) else None

    async def _answer(self, request: web.Request) -> ControlAnswer:
        version = request.version
        line = parse_line(
            f"{request.method} {request.raw_path} HTTP/{version.major}.{version.minor}".encode()
        )
        if isinstance(line, Refusal):
            return refusal_answer(line)
        match = resolve("GET" if line.method == "HEAD" else line.method, line.path)
        if isinstance(match, Refusal):
            return refusal_answer(match)
        header = request.headers.get("authorization")
        prefixes = self._allowed(match, None if header is None else header.encode("utf-8", "surrogateescape"))
        if isinstance(prefixes, Refusal):
            return refusal_answer(prefixes)
        route = match.endpoint
        if route.is_data:
            return refusal_answer(
                Refusal(NOT_IMPLEMENTED, f"{route.method} {route.pattern} is not served by the supervisor")
            )
        body = b"1" if HAS_BODY in request.headers else b""
        refusal = refuse_parameters(route, line.query) or refuse_body(route, body)
        if refusal is not None:
            return refusal_answer(refusal)
        return await self._control.answer(
            route.operation, match.name, line.query, request.headers.get("accept", ""), prefixes
        )

    def _allowed(self, match: Match, authorization: bytes | None) -> tuple[str, ...] | Refusal:
        """Return the name prefixes that the request may use; an empty tuple allows all names."""
        if match.endpoint.is_open and not self._probes_need_key:
            return ()
        key = self.keys.check(authorization, match.endpoint.scopes, match.name)
        if isinstance(key, Refusal):
            return key
        return () if key is None else key.prefixes


def _response(
    answer: ControlAnswer, connection: str, accept_encoding: str = "", cors: bytes = b""
) -> web.Response:
    """Build the response of aiohttp; an empty `connection` omits the Connection field."""
    status, content, lines = answer
    lines += cors
    body = content.encode() if isinstance(content, str) else _encode(content) + b"\n"
    if len(body) >= COMPRESSED_BYTES_MIN and accepts_gzip(accept_encoding):
        body, lines = compress([body]), gzip_fields(lines)
    headers = {"content-type": METRICS_TYPE if isinstance(content, str) else JSON_TYPE}
    for line in lines.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(": ")
        if colon:
            headers[name] = value
    headers["content-length"] = str(len(body))
    if connection:
        headers["connection"] = connection
    return web.Response(status=status, body=body, headers=headers)


async def _without_signature(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers.popall("Server", None)
    response.headers.popall("Date", None)
