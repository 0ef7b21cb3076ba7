"""On the real kernel: a writing process is killed a hundred times over one directory, and loses nothing."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from shared.contract.errors import SHUTTING_DOWN
from shared.runtime.disk_thread import Threads
from tests.harness.books.ledger import Ledger
from tests.harness.books.ledger_entries import Deletion, Request
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from tests.harness.shard.shard_reader import contents_of
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import DEEP
from tests.harness.sweeps.killed_writer import SETTINGS, TOPICS, Sent, Task, start
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import read_layout, shard_paths
from topicsd.engine.shard import Shard
from topicsd.log.writer import Identity

ROUNDS = 2000 if DEEP else 100
CLEAN_EVERY = 10
READ_RECORDS = 1000
# What the process may take for its start on a machine that is busy with other things.
TIMEOUT_SECONDS = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_log")]


class Rounds:
    """The ledger, kept from what the pipes said."""

    def __init__(self, data_dir: str, seed: int) -> None:
        self.data_dir = data_dir
        self.rng = Random(seed)
        self.ledger = Ledger()
        for name, durability in TOPICS.items():
            self.ledger.topic(name, durability)
        self.requests: dict[tuple[int, int], tuple[Sent, Request]] = {}
        self.deletions: dict[tuple[str, int], Deletion] = {}
        self.is_made = self.is_known = False
        self.acked = 0
        self.deadline = 0.0

    def play(self, round_number: int, *, clean: bool) -> None:
        retries = self._in_doubt() if round_number % 3 == 0 else []
        seed = f"{round_number} {self.rng.random()}"
        pid, pipe = start(self.data_dir, Task(round_number, seed, retries, may_delete=self.is_known))
        self.is_known = False
        try:
            said_closed = self._listen(pid, pipe, clean)
        finally:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            os.close(pipe)
        assert said_closed == clean, f"the process ended with {status}"
        self.ledger.new_generation(machine_failed=False)

    def _in_doubt(self) -> list[Sent]:
        doubtful = [sent for sent, request in self.requests.values() if request.fate in ("unknown", "gone")]
        return [sent for sent in doubtful if sent.is_keyed][-5:]

    def _listen(self, pid: int, pipe: int, clean: bool) -> bool:
        """Until it is time to end the process, and then to what is left in the pipe; whether it closed."""
        is_early = self.is_made and not clean and self.rng.random() < 0.1
        self.deadline = time.monotonic() + (self.rng.random() * 0.02 if is_early else TIMEOUT_SECONDS)
        is_ready = is_ended = said_closed = False
        for word, *rest in self._lines(pipe):
            if word is None:
                assert is_ready or is_early, "the process did not come to be ready"
                os.kill(pid, signal.SIGTERM if clean else signal.SIGKILL)
                is_ended, self.deadline = True, time.monotonic() + TIMEOUT_SECONDS
            elif word == "ready" and not is_early:
                is_ready = True
                self.deadline = time.monotonic() + self.rng.random() * 0.08
            else:
                said_closed = said_closed or word == "closed"
                self._note(word, rest)
        assert is_ended or is_early, "the process died by itself"
        return said_closed

    def _lines(self, pipe: int) -> Iterator[list[Any]]:
        """Yield the lines of the pipe; `[None]` at the deadline, which the caller then moves."""
        rest = b""
        while True:
            left = self.deadline - time.monotonic()
            # Asked first: a process that writes all the time would never leave the pipe empty.
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                yield [None]
                continue
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield msgspec.json.decode(line)

    def _note(self, word: str, rest: list[Any]) -> None:
        assert word != "died", rest
        if word == "sent":
            sent = Sent(*rest)
            request = self.ledger.sent(sent.topic, sent.payloads(), key=sent.key)
            self.requests[sent.generation, sent.number] = sent, request
        elif word in ("retried", "acked", "refused"):
            sent, request = self.requests[rest[0], rest[1]]
            if word == "retried":
                self.ledger.retried(request)
            elif word == "refused":
                assert rest[2] == SHUTTING_DOWN, rest
                self.ledger.refused(request)
            else:
                self.ledger.acked(request, rest[2])
                self.acked += 1
        elif word == "deleting":
            name, before_seq = rest
            seqs = [seq for seq, _ in self.ledger.live(name) if seq < before_seq]
            self.deletions[name, before_seq] = self.ledger.deleting(name, seqs)
        elif word == "deleted":
            self.ledger.delete_acked(self.deletions[rest[0], rest[1]])
        elif word == "not deleted":
            assert rest[2] == SHUTTING_DOWN, rest
            self.ledger.withdraw(self.deletions[rest[0], rest[1]])

    def check(self, *, clean: bool) -> None:
        """Open the shard here, and have the ledger judge it."""
        fs = RealFs()
        layout = read_layout(fs, self.data_dir)
        assert layout is not None
        loop = ManualLoop(ManualClock(time.time_ns() // 1_000_000))
        shard = Shard(
            fs,
            ManualClock(time.time_ns() // 1_000_000),
            loop,
            Threads(*[StepThread(loop)] * len(Threads._fields)),
            shard_paths(self.data_dir, 0),
            Identity(layout.instance_bytes, 0),
            SETTINGS,
            lambda error: None,
        )
        topics = {name: contents_of(shard, name, READ_RECORDS) for name in shard.topic_names()}
        exact = [name for name in TOPICS if clean or TOPICS[name] != "ephemeral"]
        self.ledger.check(topics, exact=exact)
        self.is_known = True
        self.is_made = set(topics) == set(TOPICS)
        shard.close()


def test_a_process_killed_again_and_again_loses_nothing_and_reports_no_loss(tmp_path: Path) -> None:
    seed = int(os.environ.get("TOPICS_TEST_SEED", time.time_ns()))
    print(f"replay with TOPICS_TEST_SEED={seed} (the kernel chooses its moments anew)")
    rounds = Rounds(str(tmp_path / "data"), seed)
    for number in range(ROUNDS):
        clean = number % CLEAN_EVERY == CLEAN_EVERY - 1
        with attempt("real kernel, processes ended", f"TOPICS_TEST_SEED={seed}, round {number}"):
            rounds.play(number, clean=clean)
            # Sometimes a process is killed on what the previous one left, without a check in between.
            if clean or rounds.rng.random() < 0.7:
                rounds.check(clean=clean)
    rounds.check(clean=False)
    assert rounds.acked > ROUNDS * 10
