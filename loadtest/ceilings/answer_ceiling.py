"""The minimum work of a Python server: uvloop, and the same bytes for every request.

A load generator must get more responses from it than from any real server, or it measures itself. A request
ends with its head, so requests must not have a body.
"""

from __future__ import annotations

import asyncio
from typing import cast

import uvloop

from loadtest.ceilings.bare_http import parser, rendered, serve

ANSWER = rendered(b"{}")


class SameAnswer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER * data.count(b"\r\n\r\n"))


if __name__ == "__main__":
    uvloop.run(serve(SameAnswer, parser(__doc__).parse_args().port_file))
