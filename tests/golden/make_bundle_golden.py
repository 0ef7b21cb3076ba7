"""The golden bundle of the running format, and what has to be found in it.

Run it once for each version of the bundle format that is released, and commit what it writes; never again for
the same version, whatever the code does by then::

    .venv/bin/python -m tests.golden.make_bundle_golden
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from shared.contract.names import topic_id
from tests.golden.make_snapshot_golden import described
from tests.unit.checkpoint.sample import KEYS, ORDERS, SEALED
from topicsd.disk.layout import BUNDLE_NAME
from topicsd.engine.bundle.bundle_format import VERSION, Bundle, SegmentMarks, encode_bundle, without_ordinals
from topicsd.segment.dead_file import pack_marks

GOLDEN = Path(__file__).parent
DEAD_COUNT = 1990


def sample() -> Bundle:
    """Return a bundle with a value in every field."""
    name = "orders/ä"
    topic = msgspec.structs.replace(ORDERS, name=name, topic_id=topic_id(name), segments=[SEALED], ceiling=0)
    marks = bytearray(SEALED.count)
    marks[3 : 3 + DEAD_COUNT] = b"\1" * DEAD_COUNT
    keys = msgspec.structs.replace(KEYS, topic_ids=bytes(range(16)))
    return without_ordinals(Bundle(topic, [SegmentMarks(SEALED.first_seq, pack_marks(marks))], [keys]))


def main() -> int:
    target = GOLDEN / f"bundle-format-{VERSION}"
    if target.exists():
        print(f"{target} exists: a released version never changes", file=sys.stderr)
        return 1
    (target / "data").mkdir(parents=True)
    bundle = sample()
    (target / "data" / BUNDLE_NAME).write_bytes(encode_bundle(bundle))
    text = json.dumps(described(bundle), indent=1, ensure_ascii=False)
    (target / "expected.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
