from __future__ import annotations

from pathlib import Path

import pytest

from spark.errors import SourceError
from spark.sink.rows import check_sink_columns
from spark.sink.write_options import parse_write_options, write_option_table

GIVEN = {"url": "http://127.0.0.1:4000"}


def test_options_have_defaults() -> None:
    options = parse_write_options({**GIVEN, "checkpointLocation": "/done", "queryName": "copy"})
    assert (options.topic, options.chunk_records, options.retry_s) == ("", 1000, 60)
    assert options.staging_prefix == "spark-"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"url": ""}, "url: is missing; set it to the server to write to"),
        ({"url": "ftp://a"}, "url: must be an http or https URL .*, got 'ftp://a'"),
        ({"path": "/data"}, "path: unknown option; must be one of url, apiKey, topic"),
        ({"topic": ""}, "topic: must match .*, got ''"),
        ({"txnAppId": "a"}, "txnVersion: is missing; set it to the number of this write of txnAppId"),
        ({"txnVersion": "1"}, "txnAppId: must match .*, as part of a topic name, got ''"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion: must be a whole number of at least"),
        ({"stagingPrefix": "-"}, "stagingPrefix: must match .*, got '-'"),
        ({"retrySeconds": "-1"}, "retrySeconds: must be a whole number of at least 0, got '-1'"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        parse_write_options({**GIVEN, **given})


def test_columns_that_only_a_read_has_are_ignored() -> None:
    columns = [("value", "binary"), ("partition", "int"), ("offset", "bigint"), ("timestamp", "timestamp")]
    check_sink_columns(columns, has_topic=True)
    with pytest.raises(
        SourceError, match="column headers: must be array<struct<key:string,value:binary>>, got string"
    ):
        check_sink_columns([*columns, ("headers", "string")], has_topic=True)
    kinds = [("headers", "array<struct<key:string,value:binary>>"), ("meta", "string")]
    with pytest.raises(SourceError, match="column meta: must not be combined with column headers"):
        check_sink_columns([*columns, *kinds], has_topic=True)


def test_the_documentation_lists_every_option() -> None:
    page = Path(__file__).parents[4] / "docs" / "spark" / "writing.md"
    assert write_option_table() in page.read_text(encoding="utf-8")
