"""Stands for the server where a test wants the benchmark and not what it measures.

It answers what the benchmark asks, with what the ceilings do: writes go to a bare log, reads come from
rendered pages. `python -m tests.unit.loadtest.stub_server` takes its port file and directory as the server.
"""

from __future__ import annotations

import os

import uvloop

from loadtest.bare_log import BareLog
from loadtest.ceilings.bare_http import rendered, serve
from loadtest.ceilings.read_ceiling import HotTail, ReadCeiling
from loadtest.ceilings.write_ceiling import WriteCeiling


class Stub(WriteCeiling):
    def __init__(self, log: BareLog, tail: HotTail) -> None:
        super().__init__(log)
        self._reads = ReadCeiling(tail)

    def take(self, data: bytes, body_at: int, end: int) -> None:
        if not data.startswith(b"POST"):
            self.transport.write(rendered(b"{}"))
        elif b"/diff " in data[:100]:
            self._reads.transport = self.transport
            self._reads.take(data, body_at, end)
        else:
            super().take(data, body_at, end)


async def main() -> None:
    directory = os.environ["TOPICS_DATA_DIR"]
    os.mkdir(directory)
    log, tail = BareLog(directory, is_durable=False), HotTail()
    await serve(lambda: Stub(log, tail), os.environ["TOPICS_PORT_FILE"])


if __name__ == "__main__":
    uvloop.run(main())
