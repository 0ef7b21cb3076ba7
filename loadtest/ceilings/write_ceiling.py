"""The ceiling of appends: decode, frame, write once per turn of the event loop, sync.

With `--durable` a response waits for a sync, which it shares with all appends written before the sync began;
without, the sync runs in the background. The log is the same bare log that the engine is measured against.
"""

from __future__ import annotations

import os
from functools import partial

import msgspec
import uvloop

from loadtest.ceilings.bare_http import BareHttp, parser, rendered, serve
from loadtest.engine.bare_log import BareLog
from topicsd.engine.requests import AppendRequest

_decode = msgspec.json.Decoder(AppendRequest).decode

NAME_AT = len("POST /v0/topics/")


class WriteCeiling(BareHttp):
    def __init__(self, log: BareLog) -> None:
        super().__init__()
        self._log = log

    def take(self, data: bytes, body_at: int, end: int) -> None:
        name = data[NAME_AT : data.find(b" ", NAME_AT)].decode()
        request = _decode(data[body_at:end])
        self._log.append(name, request, partial(self._written, name, len(request.records)))

    def _written(self, name: str, count: int, last: int) -> None:
        self.transport.write(rendered(appended(name, last - count + 1, last)))


def appended(name: str, first: int, last: int) -> bytes:
    seqs = b"%d" % last if first == last else b",".join([b"%d" % seq for seq in range(first, last + 1)])
    return (
        b'{"topic":"%b","first_seq":%d,"last_seq":%d,"seqs":[%b],"head_seq":%d,"count":%d,"created":false,'
        b'"deduped":false,"durability":"disk","performance":{"server_total_ms":0.05}}'
        % (name.encode(), first, last, seqs, last, last - first + 1)
    )


async def main(port_file: str, directory: str, is_durable: bool) -> None:
    log = BareLog(directory, is_durable)
    await serve(lambda: WriteCeiling(log), port_file)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dir", default=os.environ.get("TOPICS_DATA_DIR"), help="the directory of the log")
    options.add_argument("--durable", action="store_true", help="respond after the sync")
    given = options.parse_args()
    os.makedirs(given.dir, exist_ok=True)
    uvloop.run(main(given.port_file, given.dir, given.durable))
