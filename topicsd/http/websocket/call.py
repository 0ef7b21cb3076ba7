"""A WebSocket operation as a call, so that the same handlers answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shared.http.head import Fields
from topicsd.service.call import Call

FIELDS = Fields(content_type="application/json")

Answered = Callable[["WsCall", int, bytes], None]
"""Called once, with the status and the body of the response."""


class WsCall(Call, kw_only=True, eq=False):
    request_id: bytes
    answered: Answered

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        if self.on_answer is not None:
            on_answer, self.on_answer = self.on_answer, None
            on_answer()
        self.answered(self, status, b"".join(parts))


class _Refused(msgspec.Struct, gc=False):
    error: msgspec.Raw


_decode_refused = msgspec.json.Decoder(_Refused).decode


def error_in(body: bytes) -> bytes:
    """Return the JSON of the error in the body of an error response, unchanged."""
    return bytes(_decode_refused(body).error)
