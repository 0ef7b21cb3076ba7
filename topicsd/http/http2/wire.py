"""The library's side of a connection of HTTP/2, set up with our bounds."""

from __future__ import annotations

from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from topicsd.http.http2.limits import CONNECTION_WINDOW, HEADER_LIST_BYTES_MAX, STREAM_WINDOW, STREAMS_MAX

# What the client may allow is no reason to remember more: a field is looked for in all of them.
HEADER_TABLE_BYTES_MAX: Final = 4096

_CONFIGURATION = H2Configuration(
    client_side=False,
    header_encoding=None,
    # What is sent is ours, and well-formed.
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class Wire(H2Connection):
    # It remembers how streams ended, for what may still come for them; not for ever.
    MAX_CLOSED_STREAMS = 4 * STREAMS_MAX

    def __init__(self) -> None:
        super().__init__(_CONFIGURATION)
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES_MAX,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            },
        )
        self.decoder.max_header_list_size = HEADER_LIST_BYTES_MAX
        self._consumed = 0
        self.initiate_connection()
        self.increment_flow_control_window(CONNECTION_WINDOW - STREAM_WINDOW)

    def bound_header_table(self) -> None:
        """After settings of the client."""
        if self.encoder.header_table_size > HEADER_TABLE_BYTES_MAX:
            self.encoder.header_table_size = HEADER_TABLE_BYTES_MAX

    def consumed(self, size: int) -> None:
        """So much of the connection's window is free again: what a stream may send is bounded by its own."""
        self._consumed += size
        if self._consumed >= CONNECTION_WINDOW // 2:
            self.increment_flow_control_window(self._consumed)
            self._consumed = 0
