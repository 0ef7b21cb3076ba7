from __future__ import annotations

import errno
import json
import subprocess
from pathlib import Path
from random import Random

import pytest
import xxhash

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk
from tests.unit.checkpoint.sample import EMPTY, NOW_MS, ORDERS, PATHS, calls_of, head_of, shard_disk
from topicsd.engine.checkpoint.manifest import (
    ManifestDamage,
    decode_manifest,
    manifest_head,
    manifest_parts,
    read_manifest,
    topic_line,
    write_manifest,
)
from topicsd.log.file_header import UnknownVersion

LINES = [topic_line(ORDERS, 10_029), topic_line(EMPTY, 0)]
PARTS = manifest_parts(manifest_head(head_of(), "file:///cold"), LINES)
TEXT = b"".join(PARTS)


def resealed(text: bytes) -> bytes:
    """With a checksum that fits, whatever was changed."""
    body = text[: text.rindex(b"]")]
    return body + b'],"checksum":"' + xxhash.xxh3_64_hexdigest(body).encode() + b'"}\n'


def test_what_was_written_is_read_back() -> None:
    disk = shard_disk()
    write_manifest(disk, PATHS, PARTS)
    manifest = read_manifest(disk, PATHS)
    assert manifest == decode_manifest(TEXT)
    assert (manifest.number, manifest.ts, manifest.cold_dir, manifest.topic_count) == (7, NOW_MS, "/cold", 2)
    assert calls_of(disk) == ["create", "pwrite", "sync_data", "rename", "sync_dir"]
    assert not disk.open_files


def test_a_topic_says_what_a_reader_needs() -> None:
    orders, empty = decode_manifest(TEXT).topics
    assert (orders.name, orders.id, orders.epoch) == ("orders/ä", "fffffffffffffffa", 11)
    assert orders.dir == "topics/fffffffffffffffa-11"
    assert (orders.type, orders.durability, orders.ttl_ms) == ("log", "fsync", 60_000)
    assert (orders.head, orders.durable_seq, orders.evict_floor) == (10_030, 10_029, 11)
    assert (orders.earliest_seq, orders.delete_below, orders.complete_to) == (12, 12, 10_200)
    assert orders.evicted_to == {"ttl": 9, "cap": 10}
    assert orders.lost == [(10_001, 10_020, "crash")]
    assert (empty.name, empty.segments) == ("empty", [])


def test_a_segment_says_where_it_is_and_what_of_it_counts() -> None:
    sealed, active = decode_manifest(TEXT).topics[0].segments
    assert (sealed.stem, sealed.tier, sealed.sealed) == ("seg-0000000000000001-2", "cold", True)
    assert (sealed.count, sealed.live_count, sealed.dead_count, sealed.has_tags) == (10_000, 8000, 1990, True)
    assert (active.stem, active.tier, active.sealed) == ("seg-0000000000010021", "hot", False)
    assert (active.first_seq, active.count, active.data_bytes) == (10_021, 7, 900)
    assert (active.first_ts, active.last_ts) == (NOW_MS - 100, NOW_MS)


def test_it_is_json_with_a_topic_a_line() -> None:
    lines = TEXT.decode().splitlines()
    assert len(lines) == 4
    assert json.loads(lines[1].removesuffix(","))["name"] == "orders/ä"
    whole = json.loads(TEXT)
    assert [topic["name"] for topic in whole["topics"]] == ["orders/ä", "empty"]
    assert whole["wal"] == {"file": 10_000, "offset": 4096, "ordinal": 10_190, "chain": "f" * 16}


def test_a_name_cannot_break_a_line() -> None:
    hostile = topic_line(EMPTY, 0).replace(b'"empty"', json.dumps('],"checksum":"\n"}').encode())
    assert b"\n" not in hostile
    text = b"".join(manifest_parts(manifest_head(head_of(topic_count=1), ""), [hostile]))
    assert decode_manifest(text).topics[0].name == '],"checksum":"\n"}'


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_any_number_of_topics_has_a_manifest(count: int) -> None:
    parts = manifest_parts(manifest_head(head_of(topic_count=count), ""), LINES[:1] * count)
    manifest = decode_manifest(b"".join(parts))
    assert len(manifest.topics) == count
    assert manifest.cold_dir is None


def test_the_checksum_is_verified_as_the_documentation_says(tmp_path: Path) -> None:
    path = tmp_path / "MANIFEST.json"
    path.write_bytes(TEXT)
    front = subprocess.run(["head", "-n", "-1", str(path)], capture_output=True, check=True).stdout
    assert xxhash.xxh3_64_hexdigest(front) == json.loads(TEXT)["checksum"]


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_changed_byte_is_damage_wherever_it_is(mask: int) -> None:
    for offset in range(len(TEXT)):
        changed = bytearray(TEXT)
        changed[offset] ^= mask
        with pytest.raises(ManifestDamage):
            decode_manifest(bytes(changed))


def test_a_file_that_was_cut_is_damage_wherever_it_was_cut() -> None:
    for size in range(len(TEXT)):
        with pytest.raises(ManifestDamage):
            decode_manifest(TEXT[:size])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"topic_count":2', b'"topic_count":3', "holds 2 of 3 topics"),
        (b'"shard":0', b'"shard":"0"', "cannot be decoded"),
        (b'"name":', b'"neme":', "cannot be decoded"),
        (b'"empty"', b'"\xff"', "cannot be decoded"),
    ],
)
def test_what_cannot_be_is_damage_though_the_checksum_fits(old: bytes, new: bytes, said: str) -> None:
    assert old in TEXT
    with pytest.raises(ManifestDamage, match=said):
        decode_manifest(resealed(TEXT.replace(old, new)))


def test_a_newer_format_is_refused_and_fields_that_came_later_are_passed_over() -> None:
    with pytest.raises(UnknownVersion, match="format 2; this program reads format 1"):
        decode_manifest(resealed(TEXT.replace(b'{"format":1', b'{"format":2')))
    later = TEXT.replace(b'{"format":1', b'{"format":1,"later":[1]').replace(b'"stem"', b'"later":{},"stem"')
    assert decode_manifest(resealed(later)) == decode_manifest(TEXT)


def test_before_the_first_checkpoint_there_is_none() -> None:
    with pytest.raises(FileNotFoundError):
        read_manifest(shard_disk(), PATHS)


OLDER = manifest_parts(manifest_head(head_of(number=6), ""), LINES)


def replace(disk: MemoryDisk) -> None:
    write_manifest(disk, PATHS, PARTS)


def disk_with_older() -> MemoryDisk:
    disk = shard_disk()
    disk.write_file(PATHS.manifest, b"".join(OLDER))
    return disk


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_call_that_fails_leaves_a_whole_manifest_and_no_temporary(error: int) -> None:
    for nth in range(1, 6):
        disk = disk_with_older()
        disk.fail(nth=nth, error=error)
        with pytest.raises(OSError) as caught:  # noqa: PT011, the errno says which
            replace(disk)
        assert caught.value.errno == error
        assert read_manifest(disk, PATHS).number == (7 if nth == 5 else 6)
        assert disk.list_dir(PATHS.meta) == ["MANIFEST.json", "readers"]


def test_a_power_cut_leaves_the_old_manifest_or_the_new_one() -> None:
    for cut_after in range(5):
        for seed in range(30):
            disk = disk_with_older()
            disk.cut_power_after(cut_after)
            with pytest.raises(PowerCut):
                replace(disk)
            assert read_manifest(disk.after_power_cut(Random(seed)), PATHS).number in (6, 7)
