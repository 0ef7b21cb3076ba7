"""Dead letters and their way back, between two shards of which either is lost at every call of its disk.

Whatever is lost when: in the end each job lies where it belongs, once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.stage.transfer_shards import Again, TransferShards
from tests.harness.sweeps.crash_sweep import DEEP
from topicsd.engine.transfer import dead_letters, redrive

QUEUE, DEAD, OTHER = "q-0", "d1", "e1"
JOBS = 5
CUTS = 4 if DEEP else 1
META = {"kept": 1}

pytestmark = pytest.mark.usefixtures("quiet_log")


@pytest.fixture(autouse=True)
def some_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one move is of several, and another one follows it."""
    for module in (dead_letters, redrive):
        monkeypatch.setattr(module, "MOVED_AT_ONCE", 2)


def _begun(again: Again) -> TransferShards:
    stage = TransferShards(again)
    stage.owner(DEAD).put(DEAD, durable=True)
    stage.owner(OTHER).put(OTHER, durable=True)
    stage.owner(QUEUE).put(QUEUE, type="queue", durable=True, max_deliveries=1, dead_letter=DEAD)
    records = [{"data": number, "meta": META, "tag": "t"} for number in range(JOBS)]
    answer = stage.request("append", QUEUE, {"records": records})
    assert answer is not None
    assert answer[0] == 200
    return stage


def _fail_all(stage: TransferShards) -> None:
    """Every job is delivered too often."""
    for _ in range(10):
        claimed = stage.request("claim", QUEUE, {"node": "w", "max": 10})
        stage.pass_time(2000)
        if claimed is None:
            continue
        seqs = [job["$seq"] for job in claimed[1]["claimed"]]
        stage.request("nack", QUEUE, {"node": "w", "seqs": seqs})
        if not stage.owner(QUEUE).state(QUEUE).count:
            break
    dead = stage.records(DEAD)
    assert sorted(data for data, _ in dead) == list(range(JOBS)), "a job is not a dead letter once"
    assert all(meta["$dead_letter_from"] == QUEUE and meta["kept"] == 1 for _, meta in dead)
    assert not stage.records(QUEUE)


def _redrive(stage: TransferShards, **body: object) -> None:
    for _ in range(10):
        stage.request("redrive", DEAD, body)
        if not stage.owner(DEAD).state(DEAD).count:
            break
        # The first one alone would be found as the one that was moved last.
        body = {"from_seq": 0}
    assert not stage.records(DEAD)
    assert sorted(data for data, _ in stage.records(QUEUE)) == list(range(JOBS)), (
        "a job did not come back once"
    )
    assert all(meta == META for _, meta in stage.records(QUEUE))


def _live(stage: TransferShards) -> None:
    _fail_all(stage)
    _redrive(stage, seqs=stage.owner(DEAD).seqs(DEAD)[1:])
    _fail_all(stage)
    _redrive(stage)


def _live_with_another_topic(stage: TransferShards) -> None:
    """While jobs are on their way to the dead-letter topic another one is named."""
    named = False
    for _ in range(20):
        claimed = stage.request("claim", QUEUE, {"node": "w", "max": 10})
        if claimed is not None and claimed[1]["claimed"]:
            seqs = [job["$seq"] for job in claimed[1]["claimed"]]
            stage.request("nack", QUEUE, {"node": "w", "seqs": seqs})
        elif not named:
            # The answers of the first topic are lost from here on, so that one job is in doubt.
            stage.is_losing_answers = False
            put = stage.request("put_topic", QUEUE, {"dead_letter": OTHER})
            named = put is not None and put[0] == 200
        stage.pass_time(2000)
        if not stage.owner(QUEUE).state(QUEUE).count:
            break
        stage.is_losing_answers = not named
    stage.is_losing_answers = False
    stage.pass_time(60_000)
    dead = stage.records(DEAD) + stage.records(OTHER)
    assert sorted(data for data, _ in dead) == list(range(JOBS)), "a job is not a dead letter once"
    assert not stage.records(QUEUE)


LIVES = {"redriven": _live, "named": _live_with_another_topic}


def _calls(live: Callable[[TransferShards], None]) -> tuple[int, int]:
    stage = _begun(MemoryDisk.after_process_kill)
    before = [shard.disk.calls for shard in stage.shards]
    live(stage)
    assert not stage.losses
    first, second = (shard.disk.calls - calls for shard, calls in zip(stage.shards, before, strict=True))
    return first, second


def _torn(disk: MemoryDisk, calls: int) -> None:
    disk.kill_process_after(calls, torn=True)


ENDS: dict[str, tuple[Callable[[MemoryDisk, int], None], Again | None]] = {
    "killed": (MemoryDisk.kill_process_after, MemoryDisk.after_process_kill),
    "torn": (_torn, MemoryDisk.after_process_kill),
    "power": (MemoryDisk.cut_power_after, None),
}


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("number", [0, 1], ids=["the queue's", "the dead letters'"])
def test_each_job_is_moved_once_when_a_shard_is_lost_at_every_call(number: int, end: str, life: str) -> None:
    arm, again = ENDS[end]
    live = LIVES[life]
    calls = _calls(live)[number]
    assert calls > 20
    for after in range(calls):
        for seed in range(CUTS if again is None else 1):
            print("lost after", after, "seed", seed)
            cut = partial(_after_cut, f"{after} {seed}")
            stage = _begun(again or cut)
            arm(stage.shards[number].disk, after)
            live(stage)
            assert stage.losses == 1


def _after_cut(seed: str, disk: MemoryDisk) -> MemoryDisk:
    return disk.after_power_cut(Random(seed))


def test_an_answer_that_is_lost_for_longer_than_any_window_moves_nothing_twice() -> None:
    stage = _begun(MemoryDisk.after_process_kill)
    stage.owner(DEAD).put(DEAD, idempotency_window_ms=0)
    for _ in range(2):
        claimed = stage.request("claim", QUEUE, {"node": "w", "max": 1})
        if claimed is not None and claimed[1]["claimed"]:
            stage.request("nack", QUEUE, {"node": "w", "seqs": [1]})
    stage.is_losing_answers = True
    stage.request("claim", QUEUE, {"node": "w", "max": 1})
    stage.pass_time(3000)
    assert [data for data, _ in stage.records(DEAD)] == [0]
    stage.lose(0)
    stage.pass_time(300_000)
    stage.is_losing_answers = False
    _fail_all(stage)
