"""The golden compacted object of the running encoding, and what has to be found in it.

Run it once for each encoding of compacted objects that is released, and commit what it writes; never again
for the same encoding, whatever the code does by then::

    .venv/bin/python -m tests.golden.make_compacted_golden

Two slices of different brokers, of which the second one has the earlier time, with and without tag, node and
meta.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from topicsd.broker.frames_v1 import SEGMENT_V1, NewFrame, Rebase, decode_frames, encode_frames
from topicsd.broker.segment_v1 import SegmentBuilder, SegmentParts

GOLDEN: Final = Path(__file__).parent
REBASE: Final = Rebase(0x0123456789ABCDEF, 1001, 1005)
_SLICES: Final = (
    (
        5000,
        [
            NewFrame(b'{"n":1}'),
            NewFrame(b'"two"', tag="order/2", node="n-1"),
            NewFrame(b"3", meta=b'{"a":1}'),
        ],
    ),
    (4000, [NewFrame(b"[4]"), NewFrame(b'"' + b"5" * 300 + b'"', tag="order/5")]),
)


def described(data: bytes) -> list[dict[str, Any]]:
    """Return the records of an object, read one at a time."""
    records: list[dict[str, Any]] = []
    seq = REBASE.first_seq
    parts = SegmentParts()
    while seq <= REBASE.last_seq:
        part = parts.read(lambda at, size: data[at : at + size], "key", REBASE, len(data), seq, 1)
        assert part is not None
        (record,) = decode_frames(part.body, part.rebase, encoding=SEGMENT_V1).records
        records.append(
            {
                "seq": record.seq,
                "ts": record.ts,
                "data": record.data.decode(),
                "tag": record.tag.decode(),
                "node": record.node.decode(),
                "meta": record.meta and record.meta.decode(),
            }
        )
        seq += 1
    return records


def main() -> int:
    target = GOLDEN / f"compacted-{SEGMENT_V1}"
    if target.exists():
        print(f"{target} is there: a released encoding stays as it was", file=sys.stderr)
        return 1
    builder = SegmentBuilder(REBASE.incarnation, REBASE.first_seq)
    first = REBASE.first_seq
    for ts, frames in _SLICES:
        body = encode_frames(frames, REBASE.incarnation, 1, ts)
        assert builder.add(body, Rebase(REBASE.incarnation, first, first + len(frames) - 1))
        first += len(frames)
    data = b"".join(builder.parts())
    target.mkdir()
    (target / "object").write_bytes(data)
    (target / "expected.json").write_text(json.dumps(described(data), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
