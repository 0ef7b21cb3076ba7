"""A transport that records all writes; the test supplies the input.

Promises: nothing happens by itself. `pause` and `resume` call the protocol as a full and a drained buffer
would.
"""

from __future__ import annotations

import asyncio
from typing import Any


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_reading_paused = False
        self.is_closed = False
        self.is_aborted = False
        self.has_ended_writing = False
        self.protocol: asyncio.BaseProtocol | None = None

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        written = self.written
        self.writes.clear()
        return written

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.has_ended_writing = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
