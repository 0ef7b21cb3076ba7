"""Stands for the server where a test wants the benchmark and not what it measures.

It answers what the benchmark asks, with what the ceilings do: writes go to a bare log and to who watches,
reads come from rendered pages. `python -m tests.unit.loadtest.stub_server` takes its port file and
directory as the server.
"""

from __future__ import annotations

import os

import uvloop

from loadtest.ceilings.bare_http import rendered, serve
from loadtest.ceilings.fanout_ceiling import STREAM, FanoutCeiling, Watched
from loadtest.ceilings.read_ceiling import HotTail, ReadCeiling
from loadtest.engine.bare_log import BareLog


class Stub(FanoutCeiling):
    def __init__(self, log: BareLog, tail: HotTail, watched: Watched) -> None:
        super().__init__(log, watched)
        self._reads = ReadCeiling(tail)

    def take(self, data: bytes, body_at: int, end: int) -> None:
        if not data.startswith((b"POST", STREAM)):
            self.transport.write(rendered(b"{}"))
        elif b"/diff " in data[:100]:
            self._reads.transport = self.transport
            self._reads.take(data, body_at, end)
        else:
            super().take(data, body_at, end)


async def main() -> None:
    directory = os.environ["TOPICS_DATA_DIR"]
    os.mkdir(directory)
    log, tail, watched = BareLog(directory, is_durable=False), HotTail(), Watched()
    await serve(lambda: Stub(log, tail, watched), os.environ["TOPICS_PORT_FILE"])


if __name__ == "__main__":
    uvloop.run(main())
