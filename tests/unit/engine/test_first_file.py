from __future__ import annotations

import errno

from tests.harness.shard.one_shard import OneShard


def test_a_kill_while_a_larger_first_file_is_made_loses_no_head() -> None:
    def begin() -> OneShard:
        one = OneShard(wal_file_bytes=4096)
        one.append("t", 1, 2, 3)
        one.restart()
        one.send_append("t", 4)
        one.loop.run_until_idle()
        one.send_append("t", "x" * 8000)
        one.disk.trace = []
        return one

    whole = begin()
    whole.settle()
    assert whole.disk.trace is not None
    for nth in range(1, len(whole.disk.trace) + 1):
        one = begin()
        one.disk.fail(nth=nth, error=errno.EIO, forever=True)
        one.settle()
        one.kill()
        assert one.read("t").tombstone is None
        assert one.seqs("t")[:3] == [1, 2, 3], f"call {nth}"
        assert one.append("t", 9).first_seq <= 6, f"call {nth}"
