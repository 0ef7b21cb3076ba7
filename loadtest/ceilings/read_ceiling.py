"""The ceiling of reads from a hot tail: pages of rendered records, sent as slices.

It has one topic of `COUNT` records, rendered before the first request. Its record n equals the n-th record
that the benchmark writes to the server, so both send the same bytes. The slices are never joined.
"""

from __future__ import annotations

import msgspec
import uvloop

from loadtest.ceilings.bare_http import BareHttp, parser, serve

DATA = b'{"user":"alice","event":"login","ip":"10.0.0.1","n":12345}'
COUNT = 30_000
PAGE = 64
FIRST_TS = 1_790_000_000_000


class DiffRequest(msgspec.Struct, gc=False):
    from_seq: int = 0
    limit: int = 256
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0


_decode = msgspec.json.Decoder(DiffRequest).decode


class TailPage:
    """`PAGE` records as text, each followed by a comma, and the end offset of each."""

    __slots__ = ("ends", "text")

    def __init__(self, first: int, last: int) -> None:
        self.ends = [0]
        parts = []
        for seq in range(first, last + 1):
            parts.append(b'{"$seq":%d,"$ts":%d,"data":%b},' % (seq, FIRST_TS + seq, DATA))
            self.ends.append(self.ends[-1] + len(parts[-1]))
        self.text = memoryview(b"".join(parts))


class HotTail:
    def __init__(self) -> None:
        self._pages = [TailPage(first, min(first + PAGE - 1, COUNT)) for first in range(1, COUNT + 1, PAGE)]

    def slices(self, first: int, last: int) -> list[memoryview]:
        """Return the records from `first` to `last`, with commas between them."""
        slices = []
        while first <= last:
            number, skipped = divmod(first - 1, PAGE)
            page = self._pages[number]
            stop = min(last - number * PAGE, PAGE)
            slices.append(page.text[page.ends[skipped] : page.ends[stop]])
            first = number * PAGE + stop + 1
        if slices:
            slices[-1] = slices[-1][:-1]
        return slices


class ReadCeiling(BareHttp):
    def __init__(self, tail: HotTail) -> None:
        super().__init__()
        self._tail = tail

    def take(self, data: bytes, body_at: int, end: int) -> None:
        request = _decode(data[body_at:end])
        last = min(request.from_seq + request.limit, COUNT)
        records = self._tail.slices(request.from_seq + 1, last)
        start = b'{"topic":"x","records":['
        tail = (
            b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":1,"caught_up":%b,"tombstone":null,"lag":%d,'
            b'"performance":{"server_total_ms":0.05}}'
            % (last, COUNT, b"true" if last == COUNT else b"false", COUNT - last)
        )
        length = len(start) + sum(map(len, records)) + len(tail)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        self.transport.writelines([head % (length, start), *records, tail])


async def main(port_file: str) -> None:
    tail = HotTail()
    await serve(lambda: ReadCeiling(tail), port_file)


if __name__ == "__main__":
    uvloop.run(main(parser(__doc__).parse_args().port_file))
