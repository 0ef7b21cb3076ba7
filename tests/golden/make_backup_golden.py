"""The golden manifest of a backup of the running format, and what has to be found in it.

Run it once for each version of the format that is released, and commit what it writes; never again for the
same version, whatever the code does by then::

    .venv/bin/python -m tests.golden.make_backup_golden
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.golden.make_snapshot_golden import described
from topicsd.backup.manifest import (
    VERSION,
    BackupHead,
    BackupManifest,
    Reference,
    ShardContent,
    StoredFile,
    StoredObject,
    encode_manifest,
)

GOLDEN = Path(__file__).parent


def sample() -> BackupManifest:
    """Return a manifest with a value in every field."""
    head = BackupHead("20260101T000000.123Z-0123abcd", 1, "69" * 16, 2, "0.1.0", 2, 30, 20, 0.5)
    packed = StoredFile("shards/00/meta/snapshot.00000007.bin", 10, 10, [0], 5, b"d" * 16, (1, 2, 3))
    log = StoredFile("shards/00/wal/wal-0000000000000001.log", 100, 20, [1, 0], 0, b"", (4, 5, 6))
    stem = "segments/0000000000000007-1024/1-seg-0000000000000001-5f9a01c2"
    shards = [
        ShardContent(0, [packed, log], 1, 20, True, [Reference(f"{stem}.data", 77)]),
        ShardContent(1, [], 0, 0, False, []),
    ]
    objects = [StoredObject(b"o" * 16, 15), StoredObject(b"p" * 16, 5)]
    return BackupManifest(head, objects, shards, b'{"format":1}\n', "s3://bucket/prefix")


def main() -> int:
    target = GOLDEN / f"backup-manifest-{VERSION}"
    if target.exists():
        print(f"{target} exists: a released version never changes", file=sys.stderr)
        return 1
    (target / "data").mkdir(parents=True)
    (target / "data" / "manifest").write_bytes(encode_manifest(sample()))
    text = json.dumps(described(sample()), indent=1, ensure_ascii=False)
    (target / "expected.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
