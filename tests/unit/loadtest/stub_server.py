"""A stub of the server for tests of the benchmark itself.

It answers the requests of the benchmark as the ceilings do: writes go to a bare log and to the watchers, and
reads come from rendered pages. `python -m tests.unit.loadtest.stub_server` takes its port file and directory
as the server does.
"""

from __future__ import annotations

import os

import uvloop

from loadtest.ceilings.bare_http import rendered, serve
from loadtest.ceilings.fanout_ceiling import STREAM, FanoutCeiling, Watchers
from loadtest.ceilings.read_ceiling import HotTail, ReadCeiling
from loadtest.engine.bare_log import BareLog


class Stub(FanoutCeiling):
    def __init__(self, log: BareLog, tail: HotTail, watchers: Watchers) -> None:
        super().__init__(log, watchers)
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
    log, tail, watchers = BareLog(directory, is_durable=False), HotTail(), Watchers()
    await serve(lambda: Stub(log, tail, watchers), os.environ["TOPICS_PORT_FILE"])


if __name__ == "__main__":
    uvloop.run(main())
