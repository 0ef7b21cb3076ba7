from __future__ import annotations

import pytest

from topicsd.backup.manifest import (
    BackupHead,
    BackupManifest,
    ManifestDamaged,
    ShardContent,
    StoredFile,
    StoredObject,
    decode_manifest,
    encode_manifest,
)

HEAD = BackupHead("20260101T000000Z-00000000", 5, "69" * 16, 1, "1", 1, 7, 7, 0.5)
FILE = StoredFile("shards/00/wal/wal-0000000000000001.log", 100, 7, [0], 3, b"d" * 16, (1, 2, 3))
MANIFEST = BackupManifest(HEAD, [StoredObject(b"o" * 16, 10)], [ShardContent(0, [FILE], 1, 7, True)])


def test_a_manifest_is_read_back_as_it_was() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST


def test_a_manifest_cut_or_flipped_at_any_byte_is_damaged() -> None:
    data = encode_manifest(MANIFEST)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        for damaged in (bytes(flipped), data[:at]):
            with pytest.raises(ManifestDamaged):
                decode_manifest(damaged)
