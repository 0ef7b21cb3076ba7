from __future__ import annotations

from pathlib import Path

import pytest

from spark.errors import SourceError
from spark.source.columns import all_columns
from spark.source.read_options import OPTIONS, Bound, Selection, option_table, parse_options, schema_options

GIVEN = {"path": "/data", "subscribe": "orders"}


def test_a_batch_reads_everything_by_default() -> None:
    options = parse_options(GIVEN, is_stream=False)
    assert (options.start, options.end) == (Bound(word="earliest"), Bound(word="latest"))
    assert options.fail_on_data_loss
    assert not any((options.is_permissive, options.is_narrowed, options.include_headers, options.is_native))


def test_a_stream_begins_at_the_end_by_default() -> None:
    assert parse_options(GIVEN, is_stream=True).start == Bound(word="latest")
    options = parse_options({**GIVEN, "startingOffsets": "earliest"}, is_stream=True)
    assert options.start == Bound(word="earliest")


def test_option_names_are_case_insensitive() -> None:
    options = parse_options({"PATH": "/data", "topics": "b, a,", "failondataloss": "FALSE"}, is_stream=False)
    assert options.selection == Selection(names=("a", "b"))
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        ({"assign": '{"orders":[0]}'}, Selection(names=("orders",), shards={"orders": [0]})),
        ({"subscribePattern": "or.*"}, Selection(pattern="or.*")),
    ],
)
def test_topics_are_selected_in_one_of_kafkas_ways(given: dict[str, str], selected: Selection) -> None:
    options = parse_options({"path": "/data", **given}, is_stream=False)
    assert options.selection == selected
    assert options.selection.matches("orders")
    assert not options.selection.matches("bills")


@pytest.mark.parametrize(
    ("text", "seqs"),
    [('{"a":{"0":23},"b":7}', {"a": 23, "b": 7}), ('{"a":-2}', {"a": -2})],
)
def test_offsets_are_json_by_topic_with_a_shard_or_without(text: str, seqs: dict[str, int]) -> None:
    assert parse_options({**GIVEN, "startingOffsets": text}, is_stream=False).start == Bound(seqs=seqs)


def test_a_time_goes_before_offsets() -> None:
    both = {**GIVEN, "startingOffsets": '{"orders":1}', "startingTimestamp": "5"}
    assert parse_options(both, is_stream=False).start == Bound(ts=5)
    by_topic = {
        **GIVEN,
        "startingOffsets": '{"orders":1}',
        "startingOffsetsByTimestamp": '{"orders":{"0":5}}',
    }
    assert parse_options(by_topic, is_stream=False).start == Bound(times_ms={"orders": 5})


REFUSED = [
    (
        {"subscribe": "a", "assign": '{"a":[0]}'},
        "topics: set exactly one of subscribe, topics, subscribePattern",
    ),
    ({}, "subscribePattern, assign; got none"),
    ({"subscribe": " ,"}, "subscribe: must name at least one topic"),
    ({"subscribePattern": "("}, "subscribePattern: must be a regular expression"),
    ({"assign": "[]"}, "assign: must be JSON such as"),
    ({"subscribe": "a", "startingOffset": "1"}, "startingOffset: unknown option; must be one of path"),
    ({"subscribe": "a", "startingOffsets": "first"}, "startingOffsets: must be JSON such as"),
    ({"subscribe": "a", "startingOffsets": '{"a":{"0":1,"1":2}}'}, '"a" must have one shard, such as'),
    (
        {"subscribe": "a", "startingOffsets": '{"a":-3}'},
        "must be a seq of at least 0, -1 (latest) or -2 (earliest), got -3",
    ),
    ({"subscribe": "a", "startingOffsets": "latest"}, "startingOffsets: must not be latest in a batch read"),
    (
        {"subscribe": "a", "startingOffsets": '{"a":-1}'},
        "startingOffsets: must not be latest in a batch read",
    ),
    (
        {"subscribe": "a", "endingOffsets": "earliest"},
        "endingOffsets: must be latest or seqs as JSON, got earliest",
    ),
    (
        {"subscribe": "a", "endingOffsets": '{"a":-2}'},
        "endingOffsets: must be latest or seqs as JSON, got earliest",
    ),
    (
        {"subscribe": "a", "startingTimestamp": "now"},
        "startingTimestamp: must be a whole number of at least",
    ),
    ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a":-1}'}, "must be at least 0 ms"),
    ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"}, "must be one of error, latest, got"),
    (
        {"subscribe": "a", "failOnDataLoss": "no"},
        "failOnDataLoss: must be one of false, true, got 'no'",
    ),
    ({"subscribe": "a", "columns": "avro"}, "columns: must be one of kafka, native, got 'avro'"),
    ({"subscribe": "a", "mode": "DROPMALFORMED"}, "must be one of FAILFAST, PERMISSIVE, got"),
    (
        {"subscribe": "a", "minPartitions": "0"},
        "minPartitions: must be a whole number of at least",
    ),
    (
        {"subscribe": "a", "maxRecordsPerPartition": "1.5"},
        "maxRecordsPerPartition: must be a whole number of at least",
    ),
    ({"subscribe": "a", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: must be set only for a stream"),
    (
        {"subscribe": "a", "url": "http://localhost"},
        "path, url: set exactly one",
    ),
    ({"subscribe": "a", "apiKey": "secret"}, "apiKey: must be set only with url"),
]


@pytest.mark.parametrize(("given", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_a_wrong_option_is_named_with_what_is_allowed(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceError) as raised:
        parse_options({"path": "/data", **given}, is_stream=False)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(SourceError, match=f"{name}: must be set only for a batch read"):
        parse_options({**GIVEN, name: "1"}, is_stream=True)


def test_directories_are_the_same_wherever_a_task_runs() -> None:
    options = parse_options({**GIVEN, "path": "./data", "coldDir": "cold"}, is_stream=False)
    assert (options.path, options.store_url) == (f"{Path.cwd()}/data", f"file://{Path.cwd()}/cold")


def test_exactly_one_of_path_and_url_is_required() -> None:
    with pytest.raises(SourceError, match=r"path, url: set exactly one: .*; got neither"):
        parse_options({"subscribe": "orders"}, is_stream=False)
    options = parse_options({"url": "http://localhost:1", "subscribe": "a", "apiKey": "k"}, is_stream=False)
    assert (options.path, options.url, options.api_key) == ("", "http://localhost:1", "k")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"url": "localhost:4000"}, "url: must be an http or https URL .*, got 'localhost:4000'"),
        ({"url": "http://a:b"}, "url: must be an http or https URL .*, got 'http://a:b'"),
        ({"url": "http://a", "coldDir": "/cold"}, "coldDir: must be set only with path"),
        (
            {"path": "/data", "progressCursor": "spark"},
            "progressCursor: needs url",
        ),
        ({"url": "http://a", "progressCursor": "a b"}, "progressCursor: must match"),
    ],
)
def test_options_that_do_not_fit_path_or_url_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        parse_options({"subscribe": "orders", **given}, is_stream=True)


def test_a_stream_of_a_directory_may_have_a_server_for_its_cursor() -> None:
    both = {**GIVEN, "url": "http://a", "progressCursor": "spark"}
    assert parse_options(both, is_stream=True).path == "/data"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "hdfs://host/backups"}, "path: must begin with file:, s3:, gs: or az:"),
        ({"path": "s3://key:secret@bucket"}, "path: must not contain credentials"),
        (
            {"path": "/backups", "backup": "1"},
            "backup: must be set only when path is the URL of an object store",
        ),
        ({"path": "/objects", "catalog": "sqlite:"}, "catalog: must be set only when path is the URL"),
        ({"url": "http://a", "backup": "1"}, "backup: must be set only when path is the URL"),
        ({"path": "s3://b", "backup": "a/b"}, "backup: must be an id such as "),
        ({"path": "s3://b", "backup": "1", "catalog": "etcd://a"}, "backup: must not be set with catalog"),
        (
            {"path": "s3://b", "catalog": "mysql://a"},
            "catalog: must begin with sqlite:, postgresql:, etcd: or",
        ),
        ({"path": "s3://b", "catalog": "sqlite:"}, "catalog: must name the file, as in sqlite:///"),
        (
            {"path": "s3://b", "catalog": "etcd://a", "storeUrl": "s3://c"},
            "storeUrl: must not be set with catalog",
        ),
        ({"path": "s3://b", "catalog": "etcd://a", "coldDir": "/c"}, "coldDir: must not be set with catalog"),
        ({"path": "s3://b", "catalogue": "etcd://a"}, "catalog"),
    ],
)
def test_options_that_do_not_fit_a_store_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        parse_options({"subscribe": "orders", **given}, is_stream=False)


@pytest.mark.parametrize("path", ["file:///backups", "s3://bucket/prefix?endpoint=http://host:9000"])
def test_the_url_of_a_store_is_no_path_of_a_directory(path: str) -> None:
    options = parse_options({"path": path, "subscribe": "a", "backup": "2026.1Z-5f"}, is_stream=False)
    assert (options.path, options.backup, options.is_directory) == (path, "2026.1Z-5f", False)
    catalog = parse_options({"path": path, "subscribe": "a", "catalog": "etcd://host:1"}, is_stream=True)
    assert (catalog.catalog, catalog.is_directory) == ("etcd://host:1", False)
    assert parse_options(GIVEN, is_stream=False).is_directory


def test_a_backup_is_no_stream() -> None:
    with pytest.raises(SourceError, match="path: a backup does not change, so it must be read as a batch"):
        parse_options({"path": "file:///backups", "subscribe": "a"}, is_stream=True)


def test_native_columns_have_no_headers() -> None:
    assert schema_options({"columns": "native"}) == (True, False)
    assert list(all_columns(False, True))[-1] == "headers"
    with pytest.raises(SourceError, match="includeHeaders: must not be set with columns=native"):
        schema_options({"columns": "native", "includeHeaders": "true"})


def test_the_documentation_lists_every_option() -> None:
    page = Path(__file__).parents[4] / "docs" / "spark" / "reading.md"
    assert option_table() in page.read_text(encoding="utf-8")
    assert option_table().count("\n") == len(OPTIONS) + 1
