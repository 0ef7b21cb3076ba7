"""Every `file:function` in a document exists, and walkthroughs name functions in the order of their calls."""

from __future__ import annotations

import ast
import asyncio
import doctest
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.ipc.board import Board
from shared.runtime.clock import SystemClock
from shared.settings.settings import Settings
from tests.harness.output import call_order
from tests.harness.output.call_order import PROJECT, Call, calls_of, first_missing
from tests.harness.shard.one_shard import SMALL, RealShard
from tests.harness.shard.shard_driver import INSTANCE
from tests.harness.stage.feed_shards import FeedShards, StreamTopics, follow
from tests.harness.stage.one_connection import HOME, OneConnection, append, diff, request
from topicsd.worker.spec import Spec
from topicsd.worker.start import ShardStart

DOCUMENTS = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
WALKTHROUGHS = PROJECT / "docs" / "develop" / "walkthroughs.md"
TRACED = "*Traced.*"

_STEP = re.compile(r"`([\w/]+\.py):(\w+)`")


def functions_of(path: Path) -> set[str]:
    """Return the names of all functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def test_every_function_that_a_document_names_exists() -> None:
    named = [(document.name, *step) for document in DOCUMENTS for step in _STEP.findall(document.read_text())]
    assert len(named) > 80
    missing = [
        step
        for step in named
        if not (PROJECT / step[1]).is_file() or step[2] not in functions_of(PROJECT / step[1])
    ]
    assert missing == []


def traced_steps(title: str) -> list[Call]:
    """Return the numbered steps of a walkthrough that follow its mark."""
    section = WALKTHROUGHS.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. [^\n]*?`([\w/]+\.py):(\w+)`", section.partition(TRACED)[2], re.MULTILINE)
    assert len(steps) >= 10
    return steps


def start(folder: Path) -> Callable[[], object]:
    shard = RealShard(folder)
    shard.append("orders", 1)
    shard.checkpoint()
    shard.append("orders", 2)
    shard.stop_dead()
    board = Board.create(1)
    spec = Spec(0, 1, str(folder), INSTANCE.hex(), "test", -1, -1, Settings(**SMALL))
    one = ShardStart(spec, SystemClock(), board.slot(0), lambda: None, lambda: False)

    async def run() -> None:
        (await one.open(lambda error: None)).close()
        board.close()
        os.close(board.fd)

    return lambda: asyncio.run(run())


def write(_: Path) -> Callable[[], object]:
    connection = OneConnection()
    connection.receive(append(HOME))
    connection.settle()
    return lambda: (connection.receive(append(HOME)), connection.settle())


def read(_: Path) -> Callable[[], object]:
    connection = OneConnection()
    connection.one.append(HOME, 1)
    return lambda: (connection.receive(diff(HOME, b'{"after_seq":0}')), connection.settle())


def watch(_: Path) -> Callable[[], object]:
    stage = FeedShards()
    topics = {"here-0": 0, "there-1": 0}
    for name in topics:
        stage.owner(name).append(name, 1)

    def run() -> None:
        follow(stage, StreamTopics(stage, topics))
        stage.owner("there-1").append("there-1", 2)
        stage.settle()

    return run


def claim(_: Path) -> Callable[[], object]:
    connection = OneConnection()
    connection.one.put(HOME, type="queue", leases_durable=True)
    connection.one.append(HOME, 1)
    body = b'{"node":"worker-1","max":1}'
    return lambda: (
        connection.receive(request("POST", f"/v0/topics/{HOME}/claim", body)),
        connection.settle(),
    )


def checkpoint(_: Path) -> Callable[[], object]:
    connection = OneConnection()
    connection.one.append(HOME, 1)
    return connection.one.checkpoint


def spark_read(folder: Path) -> Callable[[], object]:
    source = pytest.importorskip("spark.source.source")
    types = pytest.importorskip("pyspark.sql.types")
    shard = RealShard(folder / "data")
    shard.append("orders", 1, 2)
    shard.checkpoint()
    shard.append("orders", 3)
    shard.close()
    schema = types.StructType([types.StructField("value", types.BinaryType())])

    def run() -> None:
        options = {"path": str(folder / "data"), "subscribe": "orders"}
        reader = source.TopicsdSource(options).reader(schema)
        rows = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
        assert sum(rows) == 3

    return run


@pytest.mark.parametrize(
    ("title", "prepare"),
    [
        ("A start", start),
        ("A write", write),
        ("A read", read),
        ("A watch over two shards", watch),
        ("A claim", claim),
        ("A checkpoint", checkpoint),
        ("A Spark read", spark_read),
    ],
)
def test_a_walkthrough_names_the_functions_in_the_order_of_their_calls(
    title: str, prepare: Callable[[Path], Callable[[], object]], tmp_path: Path
) -> None:
    assert first_missing(traced_steps(title), calls_of(prepare(tmp_path))) is None


def test_every_traced_walkthrough_is_run() -> None:
    assert WALKTHROUGHS.read_text().count(TRACED) == 7


def test_the_doctests_of_the_call_order_pass() -> None:
    result = doctest.testmod(call_order)
    assert (result.failed, result.attempted) == (0, 2)
