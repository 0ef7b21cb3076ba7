"""A WebSocket operation as a call, so that the same handlers answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shared.http.head import Fields
from topicsd.service.call import Call

FIELDS = Fields(content_type="application/json")

OnResponse = Callable[["WsCall", int, bytes], None]
"""Called once, with the status and the body of the response."""


class WsCall(Call, kw_only=True, eq=False):
    request_id: bytes
    on_response: OnResponse

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        if self.on_answer is not None:
            on_answer, self.on_answer = self.on_answer, None
            on_answer()
        self.on_response(self, status, b"".join(parts))


class _ErrorBody(msgspec.Struct, gc=False):
    error: msgspec.Raw


_decode_error = msgspec.json.Decoder(_ErrorBody).decode


def error_in(body: bytes) -> bytes:
    """Return the JSON of the error in the body of an error response, unchanged."""
    return bytes(_decode_error(body).error)
