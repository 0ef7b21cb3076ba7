"""The jobs on a real Spark, over a store that a real server writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from spark.__main__ import main
from spark.jobs.export import export
from spark.jobs.export_folder import ExportFolder
from spark.jobs.hadoop_folder import HadoopFolder
from spark.jobs.job_source import JobSource
from spark.jobs.replay import replay
from spark.jobs.replay_book import Target
from tests.harness.machine.dying_folder import ProcessDeath
from tests.spark.conftest import Store

TAGGED = [
    {"data": {"text": "Grüße"}, "tag": "red", "node": "n1", "meta": {"trace": "t-1", "n": 7}},
    {"data": None, "tag": "blue"},
    {"data": 1.50, "tag": "red"},
    {"data": "untagged"},
]


class DyingFolder(HadoopFolder):
    """Its process dies when the first file of a run is to come to its place."""

    def rename(self, name: str, target: str) -> None:
        if target.startswith("topic="):
            raise ProcessDeath
        super().rename(name, target)


def fill(store: Store, *topics: str, count: int = 600) -> None:
    for topic in topics:
        store.client.fill(topic, count)
        store.client.append(topic, *TAGGED)
    store.client.wait_until_durable(*topics)


def exported(spark: SparkSession, folder: Path, topic: str) -> list[Row]:
    rows = spark.read.parquet(str(folder)).where(f"topic = '{topic}'").orderBy("seq")
    return rows.collect()


def expected_rows(store: Store, topic: str) -> list[tuple[Any, ...]]:
    """All that there is of each record but its time."""
    return [(one["$seq"], *content(one)) for one in store.client.rows(topic)]


def content(record: dict[str, Any]) -> tuple[Any, ...]:
    return (record.get("$tag"), record.get("$node"), record.get("meta"), record["data"])


def as_wanted(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [
        (row.seq, row.tag, row.node, row.meta and json.loads(row.meta), json.loads(row.data)) for row in rows
    ]


def test_an_export_continues_where_the_last_one_ended_even_after_a_crash(
    spark: SparkSession, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = ("export-a", "export-b")
    fill(store, *topics)
    store.client.call("export-a", "delete", before_seq=100)
    store.client.wait_until_durable(*topics)
    out = tmp_path / "out"
    command = ["export", "--path", store.path, "--topics", ",".join(topics), "--out", str(out)]
    assert main(command, spark) == 0
    for topic in topics:
        rows = exported(spark, out, topic)
        assert as_wanted(rows) == expected_rows(store, topic)
        assert {row.day for row in rows} == {row.ts.date() for row in rows}
    assert "export: run 1: wrote 1,109 records to 2 files" in capsys.readouterr().err

    store.client.fill("export-a", 50)
    store.client.wait_until_durable("export-a")
    source = JobSource({"path": store.path, "subscribe": ",".join(topics)})
    dying = ExportFolder(DyingFolder(spark, str(out)))
    with pytest.raises(ProcessDeath):
        export(spark, source, dying, "earliest", "latest", lambda sentence: None)
    # Its manifest is there, and its rows are not yet.
    assert len(exported(spark, out, "export-a")) == len(expected_rows(store, "export-a")) - 50
    assert main(command, spark) == 0
    assert "export: no new records" in capsys.readouterr().err
    for topic in topics:
        assert as_wanted(exported(spark, out, topic)) == expected_rows(store, topic)


def test_an_export_has_a_range(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    fill(store, "export-range", count=100)
    stamp = store.client.rows("export-range")[-1]["$ts"]
    source = JobSource({"path": store.path, "subscribe": "export-range"})
    for begin, end, first, last in (
        ('{"export-range":20}', '{"export-range":30}', 20, 30),
        ("earliest", str(stamp + 1), 1, 105),
        (str(stamp + 1), "latest", 105, 105),
        ('{"export-range":20}', '{"export-range":10}', 20, 20),
    ):
        topic_range = source.ranges(begin, end)["export-range"]
        assert (topic_range.start, topic_range.end) == (first, last), (begin, end)
    folder = ExportFolder(HadoopFolder(spark, str(tmp_path)))
    made = export(spark, source, folder, '{"export-range":20}', '{"export-range":30}', lambda sentence: None)
    assert made is not None
    assert made.positions["export-range"].offset == 30
    assert [row.seq for row in exported(spark, tmp_path, "export-range")] == list(range(20, 30))


def test_an_export_from_the_end_has_what_comes_behind_it(
    spark: SparkSession, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, "export-tail", count=5)
    command = ["export", "--path", store.path, "--topics", "export-tail", "--out", str(tmp_path)]
    for _ in range(2):
        assert main([*command, "--from", "latest"], spark) == 0
        assert capsys.readouterr().err == "export: no new records\n"
    fill(store, "export-tail", count=2)
    assert main([*command, "--from", "latest"], spark) == 0
    assert as_wanted(exported(spark, tmp_path, "export-tail")) == expected_rows(store, "export-tail")[9:]


def test_a_topic_that_was_made_anew_is_loss_for_an_export(
    spark: SparkSession, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, "export-again", count=5)
    command = ["export", "--path", store.path, "--topics", "export-again", "--out", str(tmp_path)]
    assert main(command, spark) == 0
    store.client.delete("export-again")
    fill(store, "export-again", count=20)
    assert main(command, spark) == 1
    output = capsys.readouterr().err.splitlines()[-1]
    assert output.startswith('export: topic "export-again": read from seq 10, earliest is 1')
    assert main([*command, "--option", "failOnDataLoss=false"], spark) == 0
    rows = exported(spark, tmp_path, "export-again")
    assert sorted(row.seq for row in rows) == sorted([*range(1, 10), *range(1, 25)])


def test_statistics_are_by_topic_and_hour(
    spark: SparkSession, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, "stats-a", count=96)
    store.client.call("stats-a", "delete", before_seq=11)
    store.client.ask("PUT", "topics/stats-a/cursors/billing", {"from_seq": 90})
    fill(store, "stats-b", count=0)
    store.client.wait_until_durable("stats-a")
    picture = tmp_path / "stats.png"
    command = ["stats", "--path", store.path, "--topics", "stats-a,stats-b", "--png", str(picture)]
    assert main(command, spark) == 0
    output = capsys.readouterr()
    by_url = ["stats", "--url", f"http://127.0.0.1:{store.server.port}", "--topics", "stats-a,stats-b"]
    assert main(by_url, spark) == 0
    assert capsys.readouterr().out == output.out
    tables = [table.splitlines() for table in output.out.rstrip().split("\n\n")]
    assert [table[0].split()[:2] for table in tables] == [
        ["TOPIC", "HOUR"],
        ["TOPIC", "RECORDS"],
        ["TOPIC", "CURSOR"],
    ]
    of_a, of_b = (table.split() for table in tables[1][1:])
    assert (of_a[0], of_a[1], of_a[4], of_a[5]) == ("stats-a", "90", "100", "10")
    assert (of_b[0], of_b[1]) == ("stats-b", "4")
    hours = [line.split() for line in tables[0][1:] if line.startswith("stats-a")]
    assert sum(int(hour[3]) for hour in hours) == 90
    assert sum(int(hour[-1]) for hour in hours) == 10
    assert {hour[-2] for hour in hours if hour[-3] != "0"} == {"red"}
    assert tables[2][1].split()[:4] == ["stats-a", "billing", "90", "10"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"stats: wrote the chart to {picture}" in output.err


def test_a_compaction_has_the_latest_record_of_each_tag(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    fill(store, "compact-a", count=10)
    fill(store, "compact-a", count=10)
    command = ["compact", "--path", store.path, "--topics", "compact-a", "--out", str(tmp_path)]
    assert main(command, spark) == 0
    latest = {one[1]: one for one in expected_rows(store, "compact-a") if one[1]}
    rows = exported(spark, tmp_path, "compact-a")
    assert as_wanted(rows) == sorted(latest.values(), key=lambda one: int(one[0]))
    assert main(command, spark) == 0
    assert exported(spark, tmp_path, "compact-a") == rows


class DyingBook(HadoopFolder):
    """The process dies after everything was sent, before that is recorded."""

    def write_new(self, name: str, data: bytes) -> None:
        if name.endswith(".done"):
            raise ProcessDeath
        super().write_new(name, data)


def test_an_export_comes_back_once_and_in_order_also_when_the_replay_died(
    spark: SparkSession, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = ("replay-a", "replay-b")
    fill(store, *topics, count=300)
    url = f"http://127.0.0.1:{store.server.port}"
    out = tmp_path / "out"
    command = ["export", "--url", url, "--topics", ",".join(topics), "--out", str(out)]
    assert main(command, spark) == 0
    dying = ExportFolder(DyingBook(spark, str(out)))
    with pytest.raises(ProcessDeath):
        replay(spark, dying, Target(url, "", "copy-"), "", "replay", lambda sentence: None)
    fill(store, "replay-a", count=50)
    assert main(command, spark) == 0
    again = ["replay", "--in", str(out), "--url", url, "--prefix", "copy-"]
    assert main(again, spark) == 0
    for topic in topics:
        assert contents(store, f"copy-{topic}") == contents(store, topic)
    output = capsys.readouterr().err
    assert (
        f"replay: run 1: sending 608 records to topics of the same names with prefix 'copy-' at {url}"
        in output
    )
    assert "replay: run 2: sending 54 records" in output
    assert main(again, spark) == 0
    assert "replay: all records were sent before" in capsys.readouterr().err
    assert contents(store, "copy-replay-a") == contents(store, "replay-a")
    assert main([*again[:-2], "--into", "other"], spark) == 1
    assert "use another name" in capsys.readouterr().err


def contents(store: Store, topic: str) -> list[tuple[Any, ...]]:
    return [content(one) for one in store.client.rows(topic)]


def test_a_compaction_goes_into_a_topic(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    fill(store, "compact-b", count=10)
    url = f"http://127.0.0.1:{store.server.port}"
    command = ["compact", "--url", url, "--topics", "compact-b", "--out", str(tmp_path), "--into", "latest-b"]
    assert main(command, spark) == 0
    # In the order of the topic that they come from.
    kept = {one[0]: one for one in contents(store, "compact-b") if one[0]}
    assert contents(store, "latest-b") == [kept["blue"], kept["red"]]
    fill(store, "compact-b", count=10)
    # It goes by what the first one found, and that is there.
    assert main(command, spark) == 0
    assert contents(store, "latest-b") == [kept["blue"], kept["red"]]


def test_a_failed_job_prints_one_line(
    spark: SparkSession, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, server = str(tmp_path / "out"), ["--url", f"http://127.0.0.1:{store.server.port}"]
    (tmp_path / "file").touch()
    for arguments, sentence in (
        (
            ["export", "--path", store.path, "--topics", "capped", "--out", str(tmp_path / "file")],
            "/file: Not a directory",
        ),
        (
            ["export", "--path", store.path, "--topics", "nowhere", "--out", out],
            'topic "nowhere" does not exist in',
        ),
        (
            ["stats", "--path", str(tmp_path), "--topics", "a"],
            "is not a data directory: it has no LAYOUT.json",
        ),
        (["stats", "--path", store.path, "--topics", "passing"], 'topic "passing" is ephemeral'),
        (["stats", "--path", store.path, "--topics", "capped", "--from", "noon"], "got 'noon'"),
        (["replay", "--in", out, *server], "not an export folder: it has no manifest"),
        (
            ["export", "--path", store.path, "--topics", "capped", "--out", "no://where"],
            "no file system for this URI: No FileSystem for scheme",
        ),
    ):
        assert main(arguments, spark) == 1
        output = capsys.readouterr().err.splitlines()
        assert len(output) == 1
        assert sentence in output[0]
