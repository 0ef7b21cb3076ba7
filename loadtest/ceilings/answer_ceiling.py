"""The least that a Python server does: uvloop, and the same bytes for every request.

A load generator must do more of it than any server answers, or it measures itself. A request ends where its
head does: it takes requests without a body.
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
