"""Watch sessions in a data directory: `inspect` shows them, and a repair keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.output.command_run import run_here
from tests.harness.shard.data_dirs import flip, log_end
from tests.harness.shard.one_shard import RealShard, RecordedReply, record
from topicsd.engine.session_log import log_session, log_session_end
from topicsd.log.control_frame import SessionFrame


def session(number: int) -> SessionFrame:
    names = ["orders", "a"]
    return SessionFrame(number.to_bytes(16), "0a1b2c3d", names, [1, 2], [3, 4], ["n"], 256, 4096, 1000)


def watched(path: Path) -> RealShard:
    """Build a shard with one session in a snapshot, one after it, and one that ended."""
    shard = RealShard(path)
    shard.append("orders", record({"n": 1}))
    for number in (1, 2, 3):
        if number == 2:
            shard.checkpoint()
        log_session(shard.shard.state, session(number), RecordedReply())
        shard.settle()
    log_session_end(shard.shard.state, session(3).session)
    shard.settle()
    return shard


def test_a_session_is_one_row_with_all_its_fields(tmp_path: Path) -> None:
    watched(tmp_path).shard.close(checkpoint=False)
    rows = run_here("inspect", tmp_path, "--frames", "--json").json_lines
    session_rows = [row for row in rows if row["type"] == "watch_session"]
    assert len(session_rows) == 4
    assert not any("topic" in row or "topic_id" in row for row in session_rows)
    control = session_rows[0]["control"]
    assert (control["session"], control["key_id"]) == (session(1).session.hex(), "0a1b2c3d")
    assert (control["names"], control["from_seqs"], control["epochs"]) == (["orders", "a"], [1, 2], [3, 4])
    assert session_rows[-1]["control"]["names"] == []
    text = run_here("inspect", tmp_path, "--frames").out
    assert 'names=["orders","a"]' in text
    assert run_here("verify", tmp_path).code == 0


@pytest.mark.parametrize("damaged", ["", "log", "segment"])
def test_a_start_and_a_repair_keep_sessions(tmp_path: Path, damaged: str) -> None:
    shard = watched(tmp_path)
    damaged_at = log_end(shard) + 40
    shard.append("orders", record({"n": 2}))
    shard.pass_time(60)
    shard.append("orders", record({"n": 3}))
    shard.pass_time(60)
    shard.stop_dead()
    if damaged == "log":
        flip(shard.wal_files()[-1], damaged_at)
    elif damaged == "segment":
        (data,) = tmp_path.rglob("seg-*.data")
        flip(data, data.stat().st_size - 20)
    if damaged:
        assert run_here("doctor", tmp_path).code != 0
        ran = run_here("doctor", tmp_path, "--repair", "--apply")
        assert ran.code == 0, ran
    shard = RealShard(tmp_path)
    assert shard.shard.state.watch_sessions == {one.session: one for one in map(session, (1, 2))}
    shard.restart()
    assert len(shard.shard.state.watch_sessions) == 2
    shard.shard.close()
