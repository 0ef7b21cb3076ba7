from shared.contract.errors import STORAGE_FULL
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, record
from tests.harness.shard.shard_driver import DATA_DIR, INSTANCE
from topicsd.disk.layout import create_data_dir

FILE_BYTES = 8192


def shard_with_space(space_bytes: int) -> OneShard:
    disk = MemoryDisk(space_bytes=space_bytes)
    create_data_dir(disk, DATA_DIR, 1, INSTANCE)
    return OneShard(disk=disk, wal_file_bytes=FILE_BYTES)


def test_a_request_too_large_for_the_disk_is_refused_and_smaller_ones_succeed() -> None:
    shard = shard_with_space(48 << 10)
    shard.put("a", durable=True)
    while not any("spare-" in path for path in shard.disk.all_files()):
        shard.append("a", "x" * 1000)
    used = shard.disk.used_bytes
    large = shard.refused_append("a", record("y" * (64 << 10)))
    assert large.code == STORAGE_FULL
    head = shard.state("a").head_seq
    shard.pass_time(60_000)
    assert shard.append("a", "small").first_seq == head + 1
    assert shard.disk.used_bytes <= used + FILE_BYTES, "files are created again and again"


def test_a_full_disk_refuses_writes_takes_deletes_and_takes_writes_again_within_five_seconds() -> None:
    shard = shard_with_space(4 * FILE_BYTES)
    shard.disk.write_file("/data/ballast", b"b" * (FILE_BYTES + 2048))
    shard.put("a")
    refused = None
    for number in range(100):
        reply = shard.send_append("a", f"{number}" * 50)
        shard.settle()
        refused = reply.code
        if refused is not None:
            break
    assert refused == STORAGE_FULL
    head = shard.state("a").head_seq
    assert shard.delete("a", before_seq=3).deleted == 2
    assert shard.read("a", 2).records
    shard.disk.unlink("/data/ballast")
    shard.pass_time(5000)
    assert shard.append("a", "again").first_seq == head + 1
    shard.kill()
    assert shard.seqs("a") == list(range(3, head + 2))
