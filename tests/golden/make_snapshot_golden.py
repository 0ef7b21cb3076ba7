"""The golden snapshot and manifest of the running formats, and what has to be found in them.

Run it once for each version of the snapshot format that is released, and commit what it writes; never again
for the same version, whatever the code does by then::

    .venv/bin/python -m tests.golden.make_snapshot_golden
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.unit.checkpoint.sample import bytes_of, sample
from topicsd.disk.layout import snapshot_name
from topicsd.engine.checkpoint.manifest import manifest_head, manifest_parts, topic_line
from topicsd.engine.checkpoint.snapshot_format import VERSION

GOLDEN = Path(__file__).parent
NUMBER = 7


def described(value: Any) -> Any:
    """With the names of all fields, in types that JSON has."""
    if isinstance(value, msgspec.Struct):
        return {name: described(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: described(getattr(value, name)) for name in value._fields}
    if isinstance(value, dict):
        return {name: described(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [described(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def main() -> int:
    target = GOLDEN / f"snapshot-format-{VERSION}"
    if target.exists():
        print(f"{target} exists: a released version never changes", file=sys.stderr)
        return 1
    data = target / "data"
    data.mkdir(parents=True)
    snapshot = sample(NUMBER)
    lines = [topic_line(entry, entry.head) for entry in snapshot.topics]
    (data / snapshot_name(NUMBER)).write_bytes(bytes_of(snapshot))
    (data / "MANIFEST.json").write_bytes(
        b"".join(manifest_parts(manifest_head(snapshot.head, "file:///cold"), lines))
    )
    text = json.dumps(described(snapshot), indent=1, ensure_ascii=False)
    (target / "expected.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
