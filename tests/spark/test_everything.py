"""Spark over the directory of everything, with its server up and down, whole and damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.__main__ import main
from tests.harness.clients.topic_client import TopicClient
from tests.harness.server.everything import Everything, ask, server, snapshots_of, wait_until_synced
from tests.harness.server.everything_fill import KEY, fill
from tests.harness.shard.data_dirs import flip
from topicsd.disk.layout import shard_paths
from topicsd.segment.entry import SegmentName


@pytest.fixture(scope="module")
def served(everything: Everything, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    copy = everything.copied(tmp_path_factory.mktemp("served"))
    with server(copy.folder) as running:
        api = TopicClient(running.port, KEY)
        fill(api, "c")
        said = ask(api)
        wait_until_synced(copy.folder, api, said)
        yield copy._replace(said=said)


@pytest.fixture(params=["down", "up"])
def directory(request: pytest.FixtureRequest, everything: Everything) -> Everything:
    chosen: Everything = request.getfixturevalue("served") if request.param == "up" else everything
    return chosen


def is_in_files(directory: Everything, topic: str) -> bool:
    return bool(directory.said.states[topic]["config"]["durability"] != "ephemeral")


def options(directory: Everything) -> dict[str, str]:
    topics = sorted(topic for topic in directory.said.states if is_in_files(directory, topic))
    return {
        "path": str(directory.data),
        "coldDir": str(directory.cold),
        "subscribe": ",".join(topics),
        "failOnDataLoss": "false",
    }


def seqs_read(spark: SparkSession, directory: Everything, **more: str) -> dict[str, list[int]]:
    rows = spark.read.format("topicsd").options(**options(directory), **more).load().collect()
    seqs: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: (row.topic, row.offset)):
        seqs.setdefault(row.topic, []).append(row.offset)
    return seqs


def test_a_pattern_passes_over_topics_that_have_no_files(spark: SparkSession, everything: Everything) -> None:
    given = {**options(everything), "subscribePattern": ".*"}
    del given["subscribe"]
    rows = spark.read.format("topicsd").options(**given).load().collect()
    assert {row.topic for row in rows} == set(expected_seqs(everything))


def expected_seqs(directory: Everything) -> dict[str, list[int]]:
    seqs = {topic: [row["$seq"] for row in rows] for topic, rows in directory.said.rows.items()}
    return {topic: one for topic, one in seqs.items() if one and is_in_files(directory, topic)}


def test_a_batch_has_the_rows_that_the_server_gave(spark: SparkSession, directory: Everything) -> None:
    assert seqs_read(spark, directory) == expected_seqs(directory)


def test_statistics_have_every_topic_and_cursor(
    spark: SparkSession, directory: Everything, capfd: pytest.CaptureFixture[str]
) -> None:
    topics = options(directory)["subscribe"]
    given = ["stats", "--path", str(directory.data), "--topics", topics]
    assert main(given, spark) == 0
    output = capfd.readouterr().out
    for topic in topics.split(","):
        assert topic in output
    assert "billing" in output


def test_damaged_segments_are_skipped_when_that_is_asked_for(
    spark: SparkSession, everything: Everything, tmp_path: Path
) -> None:
    copy = everything.copied(tmp_path)
    for snapshot in snapshots_of(copy):
        for topic in snapshot.topics:
            if topic.name == copy.first.fsync:
                entry = topic.segments[-1]
                name = SegmentName(topic.topic_id, topic.epoch, entry.first_seq, entry.generation)
                root = shard_paths(str(copy.data), snapshot.head.shard).root
                flip(Path(root, name.key(".data")), 150)
    rows, missing = seqs_read(spark, copy, mode="PERMISSIVE"), expected_seqs(copy)
    lost = {topic: sorted(set(seqs) - set(rows[topic])) for topic, seqs in missing.items()}
    assert [topic for topic, seqs in lost.items() if seqs] == [copy.first.fsync]
    assert len(lost[copy.first.fsync]) == 1
    with pytest.raises(Exception, match=r"set mode=PERMISSIVE to skip"):
        seqs_read(spark, copy)
