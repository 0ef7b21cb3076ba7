"""The WebSocket reader: bytes to messages, control frames or protocol violations.

`wsproto` parses the frames strictly. The size limit of a message is implemented as a protocol extension,
because extensions are called as soon as the head of a frame is known: a message that is too large is
refused before it has arrived.
"""

from __future__ import annotations

from io import BytesIO
from typing import NamedTuple

from wsproto.extensions import Extension
from wsproto.frame_protocol import (
    CloseReason,
    FrameDecoder,
    FrameProtocol,
    Opcode,
    ParseFailed,
    RsvBits,
)

from topicsd.http.websocket.frames import UNSUPPORTED_DATA

_NO_BITS = RsvBits(False, False, False)


class Message(NamedTuple):
    """A complete text message."""

    text: bytes


class ControlMessage(NamedTuple):
    """A control frame, or an empty fragment."""

    opcode: Opcode
    payload: bytes
    code: int = 0
    """The code of a close frame."""


class Violation(NamedTuple):
    """A protocol violation, after which nothing can be read; `code` is the close code to send."""

    code: int
    reason: str


class _Bound(Extension):
    name = "bound"

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._size = 0

    def offer(self) -> bool | str:
        return False

    def enabled(self) -> bool:
        return True

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        if not opcode.iscontrol():
            self._size = payload_length + (self._size if opcode is Opcode.CONTINUATION else 0)
            if self._size > self._bytes_max:
                return CloseReason.MESSAGE_TOO_BIG
        return _NO_BITS


class WsReader:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._frames = FrameProtocol(False, [_Bound(bytes_max)])
        self._text = BytesIO()
        self.pending_bytes = 0
        """Bytes of the message in progress."""

    def feed(self, data: bytes) -> None:
        self._frames.receive_bytes(data)

    def next(self) -> Message | ControlMessage | Violation | None:
        """Return the next item; None if it is incomplete, and after a close."""
        try:
            for frame in self._frames.received_frames():
                opcode, payload = frame.opcode, frame.payload
                if opcode is Opcode.TEXT:
                    assert isinstance(payload, str)
                    if not frame.message_finished:
                        self.pending_bytes += self._text.write(payload.encode())
                        if not payload:
                            return ControlMessage(Opcode.CONTINUATION, b"")
                    elif not self.pending_bytes:
                        return Message(payload.encode())
                    else:
                        self._text.write(payload.encode())
                        return self._complete_message()
                elif opcode is Opcode.BINARY:
                    return Violation(UNSUPPORTED_DATA, "a message must be a JSON text")
                elif opcode is Opcode.CLOSE:
                    assert isinstance(payload, tuple)
                    return ControlMessage(opcode, b"", payload[0])
                else:
                    assert isinstance(payload, bytes)
                    return ControlMessage(opcode, payload)
        except ParseFailed as error:
            if error.code is CloseReason.MESSAGE_TOO_BIG:
                return Violation(error.code, f"a message must be at most {self._bytes_max} bytes")
            return Violation(error.code, str(error))
        return None

    def _complete_message(self) -> Message:
        # `getvalue` of a BytesIO shares its buffer: no copy.
        text, self._text, self.pending_bytes = self._text.getvalue(), BytesIO(), 0
        return Message(text)
