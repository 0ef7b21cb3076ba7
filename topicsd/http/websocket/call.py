"""An operation that was asked for on a WebSocket, as a call like any other: the same handlers answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shared.http.head import Fields
from topicsd.service.call import Call

FIELDS = Fields(content_type="application/json")

Answered = Callable[["WsCall", int, bytes], None]
"""Called once, with status and body."""


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
    """The error of an answer that is one, as it stands there."""
    return bytes(_decode_refused(body).error)
