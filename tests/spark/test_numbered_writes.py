"""A numbered batch write is applied once under any kill: a real server and simulated drivers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark.sink.write_options import parse_write_options
from spark.sink.writers import NumberedWriter, TaskReport
from tests.spark.conftest import Store
from tests.spark.test_whole_batches import Killed, MortalClient


def writer(store: Store, name: str, number: int) -> NumberedWriter:
    url = f"http://127.0.0.1:{store.server.port}"
    given = {"url": url, "recordsPerRequest": "3", "txnAppId": name, "txnVersion": str(number)}
    options = parse_write_options(given)
    assert options.txn is not None
    return NumberedWriter(options, options.txn)


def staged(one: NumberedWriter, topic: str, values: range) -> list[TaskReport | None]:
    rows = pa.record_batch({"topic": [topic] * len(values), "data": [str(value) for value in values]})
    return [one._stage(one._name, 0, iter([rows]))]


def write(store: Store, name: str, number: int, topic: str, values: range) -> None:
    one = writer(store, name, number)
    one.commit(staged(one, topic, values))


def test_a_write_is_done_once_and_older_ones_not_at_all(store: Store) -> None:
    for number, values in ((3, range(8)), (3, range(20, 30)), (2, range(40, 50)), (7, range(8, 12))):
        write(store, "numbered", number, "numbered-rows", values)
    assert [row["data"] for row in store.client.rows("numbered-rows")] == list(range(12))


@pytest.mark.parametrize("is_done", [False, True], ids=["request lost", "answer lost"])
def test_one_that_is_killed_at_any_request_is_whole_when_it_is_run_again(
    store: Store, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for killed_at in range(1, 50):
        name = f"numbered-{is_done}-{killed_at}"
        write(store, name, 0, name, range(5))
        one = writer(store, name, 1)
        reports = staged(one, name, range(5, 15))
        MortalClient.left, MortalClient.is_done = killed_at, is_done
        with monkeypatch.context() as patched:
            patched.setattr("spark.sink.writers.ServerClient", MortalClient)
            try:
                one.commit(reports)
            except Killed:
                is_over = False
            else:
                is_over = True
        write(store, name, 1, name, range(5, 15))
        assert [row["data"] for row in store.client.rows(name)] == list(range(15)), killed_at
        if is_over:
            return
    pytest.fail("it never came to its end")
