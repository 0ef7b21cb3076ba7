"""Load scenarios for locust: a writer, a reader, and both over 1,000 topics.

`locust -f loadtest/locustfile.py Writer --host http://127.0.0.1:4000`, or `Reader`, or `Mixed`. They check
what they are told, so that a wrong answer is a failure as a refused one is. For figures use
`python -m loadtest bench`: locust itself costs far more than what it asks for.

`LOADTEST_TOPICS` says how many topics Mixed goes over. What it must not know: how the server spreads them.
"""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

from locust import FastHttpUser, constant_throughput, task

TOPICS = int(os.environ.get("LOADTEST_TOPICS", "1000"))
BATCH = 10
PAGE = 100

_numbers = itertools.count()


def record() -> dict[str, Any]:
    return {"data": {"sku": "AEROPRESS-GO", "qty": 1, "total": random.randrange(10_000)}, "tag": "order"}


class TopicUser(FastHttpUser):
    """What all of them can do; each checks the answer."""

    abstract = True
    wait_time = constant_throughput(50)

    def append(self, topic: str, count: int) -> None:
        body = {"records": [record() for _ in range(count)]}
        with self.client.post(f"/v0/topics/{topic}", json=body, name="append", catch_response=True) as answer:
            if answer.status_code not in (200, 201):
                answer.failure(f"{answer.status_code}: {answer.text}")
                return
            told = answer.json()
            if told["count"] != count or told["last_seq"] - told["first_seq"] + 1 != count:
                answer.failure(f"{count} records were sent, the answer is {told}")

    def read_on(self, topic: str, cursor: int) -> int:
        """Reads a page behind the cursor; gives the next one."""
        body = {"from_seq": cursor, "limit": PAGE}
        with self.client.post(
            f"/v0/topics/{topic}/diff", json=body, name="diff", catch_response=True
        ) as answer:
            if answer.status_code != 200:
                answer.failure(f"{answer.status_code}: {answer.text}")
                return cursor
            told = answer.json()
            seqs = [one["$seq"] for one in told["records"]]
            # Nothing here is deleted or expires: what is read is whole.
            if seqs != list(range(cursor + 1, cursor + 1 + len(seqs))) or told["tombstone"]:
                answer.failure(f"read {seqs} behind {cursor}, tombstone {told['tombstone']}")
                return cursor
            if seqs and told["next_from_seq"] != seqs[-1]:
                answer.failure(f"next_from_seq is {told['next_from_seq']} after {seqs[-1]}")
                return cursor
            return int(told["next_from_seq"])


class Writer(TopicUser):
    """Writes to a topic of its own: single records, and now and then a batch."""

    def on_start(self) -> None:
        self.topic = f"locust-writer-{next(_numbers)}"

    @task(9)
    def write_one(self) -> None:
        self.append(self.topic, 1)

    @task(1)
    def write_batch(self) -> None:
        self.append(self.topic, BATCH)


class Reader(TopicUser):
    """Reads a topic from its beginning to its end, again and again."""

    def on_start(self) -> None:
        self.topic = f"locust-reader-{next(_numbers)}"
        self.cursor = 0
        for _ in range(5):
            self.append(self.topic, PAGE)

    @task
    def read(self) -> None:
        following = self.read_on(self.topic, self.cursor)
        self.cursor = following if following > self.cursor else 0


class Mixed(TopicUser):
    """Goes over all topics on one connection: three writes to a read of what was written there."""

    def on_start(self) -> None:
        self.cursors: dict[str, int] = {}

    @task(3)
    def write(self) -> None:
        topic = f"locust-mixed-{random.randrange(TOPICS)}"
        self.append(topic, 1)
        self.cursors.setdefault(topic, 0)

    @task(1)
    def read(self) -> None:
        if self.cursors:
            topic = random.choice(list(self.cursors))
            self.cursors[topic] = self.read_on(topic, self.cursors[topic])
