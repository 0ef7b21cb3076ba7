"""Clients of shared topics that use several nodes, each a thread: writers with and without keys, and readers.

Promises: each request and answer is noted in the `NodesBook`. A writer with keys repeats a request at other
nodes until it is acknowledged; one without keys sends it once. A reader follows its topics by `/consume`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.client import HTTPException
from random import Random
from typing import Any, Final

from tests.harness.books.nodes_book import NodesAppend, NodesBook
from tests.harness.clients.live_threads import LiveThreads
from tests.harness.clients.raw_client import RawClient

PAUSE_SECONDS: Final = 0.05
READ_WAIT_MS: Final = 500
ANSWER_SECONDS: Final = 4.0
"""A client of a node that hangs asks another one after this time."""
DEFINITE: Final = frozenset(
    {"BackPressureRejected", "throttled", "not_ready", "shutting_down", "topic_fenced"}
)
"""Refusals after which nothing was written."""
PARTITIONS: Final = 4
KEYED: Final = ("keyed-a", "keyed-b")

Ports = Callable[[], Sequence[int]]
"""Returns the ports of the nodes that may be asked now."""


def partition_name(partition: int) -> str:
    """Return the name of a partition of the topic `parts`, as the topics API has it."""
    return f"parts:{partition}" if partition else "parts"


class NodeClients(LiveThreads):
    def __init__(
        self, ports: Ports, book: NodesBook, seed: object, *, writers: int = 2, keyed: int = 2
    ) -> None:
        super().__init__()
        self._ports = ports
        self._book = book
        works = [self._produce] * writers + [self._append_keyed] * keyed + [self._read]
        self._threads = [
            threading.Thread(target=self._live, args=(work, Random(f"{seed} {number}")))
            for number, work in enumerate(works)
        ]

    def _live(self, work: Callable[[Random], None], rng: Random) -> None:
        try:
            while not self._ending.is_set():
                work(rng)
        except Exception as problem:
            self._book.complaints.append(f"{work.__name__}: {type(problem).__name__}: {problem}")

    def _ask(self, rng: Random, target: str, body: object) -> tuple[int, Any]:
        """Send one request to one node; return status 0 when there is no whole answer."""
        ports = self._ports()
        if not ports:
            self._ending.wait(PAUSE_SECONDS)
            return 0, None
        try:
            with RawClient(rng.choice(ports)) as client:
                client.socket.settimeout(ANSWER_SECONDS)
                answer = client.ask("POST", target, body)
                return answer.status, json.loads(answer.body)
        except (OSError, HTTPException):
            self._ending.wait(PAUSE_SECONDS)
            return 0, None

    # -- writers

    def _produce(self, rng: Random) -> None:
        partitions = rng.sample(range(PARTITIONS), 2)
        appends = [self._book.send(partition_name(one), rng.randint(1, 5)) for one in partitions]
        body = {
            "topic_partitions": [
                {"topic": "parts", "partition": partition, "records": append.values}
                for partition, append in zip(partitions, appends, strict=True)
            ]
        }
        status, answer = self._ask(rng, "/produce", body)
        if status == 0:
            self._note_lost(appends)
        elif "results" in answer:
            for append, result in zip(appends, answer["results"], strict=True):
                if result["ok"]:
                    self._book.acknowledge(append, result["start_offset"])
                else:
                    self._refused(append, result["error_type"])
        else:
            for append in appends:
                self._refused(append, answer["error"]["code"])

    def _note_lost(self, appends: list[NodesAppend]) -> None:
        for append in appends:
            self._book.refuse(append, "no answer", is_definite=False)

    def _refused(self, append: NodesAppend, code: str) -> None:
        self._book.refuse(append, code, is_definite=code in DEFINITE)
        self._ending.wait(PAUSE_SECONDS)

    def _append_keyed(self, rng: Random) -> None:
        append = self._book.send(rng.choice(KEYED), rng.randint(1, 5))
        body = {
            "records": [{"data": value} for value in append.values],
            "idempotency_key": f"key of {append.values[0]}",
        }
        while not self._ending.is_set():
            status, answer = self._ask(rng, f"/v0/topics/{append.topic}", body)
            if status in (200, 201):
                self._book.acknowledge(append, answer["first_seq"])
                return
            code = "no answer" if status == 0 else answer["error"]["code"]
            self._book.refuse(append, code, is_definite=False)
            self._ending.wait(PAUSE_SECONDS)

    # -- readers

    def _read(self, rng: Random) -> None:
        offsets = dict.fromkeys(range(PARTITIONS), 1)
        while not self._ending.is_set():
            body = {
                "max_wait_ms": READ_WAIT_MS,
                "min_bytes": 1,
                "topic_partitions": [
                    {"topic": "parts", "partition": partition, "fetch_offset": offset}
                    for partition, offset in offsets.items()
                ],
            }
            status, answer = self._ask(rng, "/consume", body)
            if status != 200:
                continue
            for result in answer["results"]:
                if result["ok"]:
                    partition = result["partition"]
                    for record in result["records"]:
                        self._book.note(partition_name(partition), record["offset"], record["value"])
                    offsets[partition] = result["next_offset"]


def contents_of(port: int, topics: Sequence[str]) -> dict[str, dict[int, str]]:
    """Read all records of shared topics from their beginning, at one node."""
    contents: dict[str, dict[int, str]] = {}
    with RawClient(port) as client:
        for topic in topics:
            records = contents[topic] = {}
            seq, caught_up = 0, False
            while not caught_up:
                page = client.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": seq}).succeeded
                assert page["tombstone"] is None, page["tombstone"]
                records.update((one["$seq"], one["data"]) for one in page["records"])
                seq, caught_up = page["next_from_seq"], page["caught_up"]
    return contents
