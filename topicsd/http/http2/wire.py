"""The `h2` library's connection, configured with our bounds."""

from __future__ import annotations

from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from topicsd.http.http2.limits import CONNECTION_WINDOW, HEADER_LIST_BYTES_MAX, STREAM_WINDOW, STREAMS_MAX

# A larger table that the client allows is not used: each header lookup searches all of it.
HEADER_TABLE_BYTES_MAX: Final = 4096

_CONFIGURATION = H2Configuration(
    client_side=False,
    header_encoding=None,
    # Our own headers are well-formed.
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class Wire(H2Connection):
    # The library remembers how streams ended, for frames that still arrive for them; this bounds it.
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
        """Bound the header table after the client changed its settings."""
        if self.encoder.header_table_size > HEADER_TABLE_BYTES_MAX:
            self.encoder.header_table_size = HEADER_TABLE_BYTES_MAX

    def return_window(self, size: int) -> None:
        """Return `size` bytes to the connection's window. Each stream is bounded by its own window."""
        self._consumed += size
        if self._consumed >= CONNECTION_WINDOW // 2:
            self.increment_flow_control_window(self._consumed)
            self._consumed = 0
