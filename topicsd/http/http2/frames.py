"""The HTTP/2 frame cutter: complete frames, each checked before the library receives it.

`h2` receives one frame at a time from here, so the frames before a wrong one are processed, and everything
that `h2` would keep is bounded:

V1  A frame has at most the length that every client may send, which its first nine bytes say (`h2` would
    buffer all of a longer one first).
V2  A header block is bounded over all its frames, before it is decompressed: a field costs `h2` a copy of
    what follows it.
V3  Frames that cost work and request nothing are counted (`cost`), to distinguish a flood of them from a
    normal client.
V4  The first frame is SETTINGS. Unknown settings are removed: `h2` keeps each setting it ever saw, and
    iterates over all of them with every frame.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from h2.errors import ErrorCodes

from shared.http.head import BLOCK_BYTES_MAX, LINE_BYTES_MAX
from shared.http.http2_preface import HEADER_BYTES, PREFACE, SETTINGS_TYPE

FRAME_BYTES_MAX: Final = 16 << 10
# The size as plain text. Compressed blocks are shorter, unless a client inflates them on purpose.
HEADER_BLOCK_BYTES_MAX: Final = BLOCK_BYTES_MAX + LINE_BYTES_MAX
# Smaller data frames are counted, except the last one of a body.
SMALL_DATA_BYTES: Final = 256

DATA: Final = 0
HEADERS: Final = 1
PUSH_PROMISE: Final = 5
CONTINUATION: Final = 9
SETTINGS_MAX: Final = 64
_END_STREAM: Final = 0x1
_END_HEADERS: Final = 0x4
_SETTING_BYTES: Final = 6
_KNOWN_SETTINGS: Final = frozenset(range(1, 7))


class Http2Frame(NamedTuple):
    type: int
    data: bytes
    """The whole frame, with its header."""
    cost: int


class FrameCutter:
    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._is_first = True
        self._block_bytes = 0
        self.is_in_block = False
        """A header block is incomplete: no other frame may arrive before its end."""

    def feed(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data if self.pending_bytes else data
        self._at = 0

    @property
    def pending_bytes(self) -> int:
        """Return the number of bytes that were fed and not taken."""
        return len(self._data) - self._at

    @property
    def has_partial(self) -> bool:
        """Return whether the rest of a frame or of a header block is missing."""
        return self.is_in_block or self.pending_bytes > 0

    @property
    def awaits_head(self) -> bool:
        """Return whether the missing bytes have the short timeout of a head, not that of a body."""
        return self.is_in_block or self.pending_bytes < HEADER_BYTES or self._data[self._at + 3] != DATA

    def take_preface(self) -> bool | None:
        """Return whether the preface was taken; None while too few bytes were received to decide."""
        start = self._data[: len(PREFACE)]
        if start == PREFACE:
            self._at = len(PREFACE)
            return True
        return None if PREFACE.startswith(start) else False

    def next(self) -> Http2Frame | ErrorCodes | None:
        """Return the next frame, None if it is incomplete, or the reason why reading ends."""
        data, at = self._data, self._at
        if len(data) - at < HEADER_BYTES:
            return None
        length = int.from_bytes(data[at : at + 3])
        kind, flags = data[at + 3], data[at + 4]
        if length > FRAME_BYTES_MAX:
            return ErrorCodes.FRAME_SIZE_ERROR
        if (self._is_first and kind != SETTINGS_TYPE) or kind == PUSH_PROMISE:
            return ErrorCodes.PROTOCOL_ERROR
        if kind == SETTINGS_TYPE and length > SETTINGS_MAX * _SETTING_BYTES:
            return ErrorCodes.ENHANCE_YOUR_CALM
        end = at + HEADER_BYTES + length
        if end > len(data):
            return None
        self._is_first = False
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes = length + (self._block_bytes if kind == CONTINUATION else 0)
            if self._block_bytes > HEADER_BLOCK_BYTES_MAX:
                return ErrorCodes.ENHANCE_YOUR_CALM
            self.is_in_block = not flags & _END_HEADERS
        self._at = end
        is_free = kind == DATA and (length >= SMALL_DATA_BYTES or flags & _END_STREAM)
        frame = data[at:end]
        return Http2Frame(
            kind, _known_settings(frame) if kind == SETTINGS_TYPE else frame, 0 if is_free else 1
        )


def _known_settings(frame: bytes) -> bytes:
    """Return a SETTINGS frame with only the known settings; one of a malformed length unchanged."""
    payload = frame[HEADER_BYTES:]
    if len(payload) % _SETTING_BYTES:
        return frame
    settings = [payload[at : at + _SETTING_BYTES] for at in range(0, len(payload), _SETTING_BYTES)]
    known = b"".join(one for one in settings if int.from_bytes(one[:2]) in _KNOWN_SETTINGS)
    return len(known).to_bytes(3) + frame[3:HEADER_BYTES] + known
