"""The tables of the API documentation agree with the tables in the code, row by row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from router.control.broker_metrics import BROKER_METRICS
from router.control.control import ControlEndpoints
from router.control.metrics_render import CURSOR_SERIES, QUEUE_SERIES, ROUTE_SERIES, TOPIC_SERIES
from router.control.metrics_table import CONNECTION_METRICS, SHARD_FAMILIES, SHARD_HISTOGRAMS, SHARD_METRICS
from shared.contract.endpoints import ENDPOINTS
from shared.contract.errors import STATUS
from shared.contract.topic_config import TopicConfig
from shared.ipc.board import WorkerState
from shared.settings.settings import DECLARED, show_value
from topicsd.engine.requests import AppendRequest, NewRecord, ProducerSeq
from topicsd.service.input.bodies import CursorBody, DeleteBody, DiffBody
from topicsd.service.input.route_body import RouteBody
from topicsd.service.queues.bodies import ClaimBody, ExtendBody, NackBody
from topicsd.service.queues.redrive_body import RedriveBody
from topicsd.service.watch.body import WatchBody
from topicsd.service.watch.options import Position, StreamOptions

PROJECT = Path(__file__).parents[2]
API = PROJECT / "docs" / "api"


def rows(page: str, *headings: str) -> Iterator[list[str]]:
    """Yield the cells of every table of a page that has these columns."""
    text = (API / page).read_text(encoding="utf-8")
    head = r" \| ".join(map(re.escape, headings))
    for table in re.finditer(rf"^\| {head} \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
        for line in table[1].splitlines():
            yield [cell.strip() for cell in line.strip("|").split("|")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_endpoint_is_listed_with_its_operation_and_scopes() -> None:
    listed = {
        (names(method)[0], names(path)[0], names(operation)[0], frozenset(names(scopes)))
        for method, path, operation, scopes, _ in rows(
            "index.md", "method", "path", "operation", "scopes", "described in"
        )
    }
    assert listed == {(one.method, one.pattern, one.operation, one.scopes) for one in ENDPOINTS}


def test_every_query_parameter_is_described_where_its_endpoint_is() -> None:
    columns = ("method", "path", "operation", "scopes", "described in")
    pages = {names(row[2])[0]: re.findall(r"\(([\w-]+\.md)", row[4])[0] for row in rows("index.md", *columns)}
    missing = [
        (one.operation, parameter)
        for one in ENDPOINTS
        for parameter in one.parameters
        if not re.search(rf"`{parameter}`|[?&`]{parameter}=", (API / pages[one.operation]).read_text())
    ]
    assert missing == []


def test_every_error_code_is_listed_with_its_status() -> None:
    listed = {
        names(code)[0]: int(status)
        for status, code, _, _ in rows("index.md", "status", "code", "meaning", "what to do")
    }
    assert listed == STATUS


def test_every_limit_has_the_default_of_its_setting() -> None:
    listed = {
        names(variable)[0]: names(default)[0]
        for _, variable, default, _ in rows("index.md", "limit", "variable", "default", "answer")
    }
    defaults = {field.variable: show_value(field, field.default) for field in DECLARED}
    assert listed == {variable: defaults[variable] for variable in listed}
    assert {variable for variable in defaults if variable.startswith("TOPICS_MAX_")} - listed.keys() == {
        "TOPICS_MAX_WAITING_BYTES",
        "TOPICS_MAX_WAITING_REQUESTS",
    }


def test_every_field_of_a_topic_is_listed_with_its_default() -> None:
    listed = {
        names(field)[0]: json.loads(names(default)[0])
        for field, default, _ in rows("topics.md", "field", "default", "meaning")
    }
    assert listed == msgspec.to_builtins(TopicConfig())


def test_every_field_of_a_route_is_listed_with_its_default() -> None:
    listed = {
        name: json.loads(names(default)[0]) if names(default) else None
        for fields, default, _ in rows("routes.md", "field", "default", "meaning")
        for name in names(fields)
    }
    defaults = {
        field.encode_name: None if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(RouteBody)
    }
    assert listed == defaults


def test_every_metric_is_listed() -> None:
    listed = {
        name
        for columns in (("metric", "type", "meaning"), ("metric", "meaning"))
        for metric, *_ in rows("health-and-metrics.md", *columns)
        for name in names(metric)
    }
    tables = (*SHARD_METRICS, *BROKER_METRICS, *SHARD_FAMILIES, *CONNECTION_METRICS, *SHARD_HISTOGRAMS)
    series = [one[0] for one in (*TOPIC_SERIES, *CURSOR_SERIES, *QUEUE_SERIES, ROUTE_SERIES)]
    page = (API / "health-and-metrics.md").read_text(encoding="utf-8")
    assert {one.name for one in tables} | set(series) <= listed
    assert all(f"`{name}`" in page for name in re.findall(r'"(topics_\w+)"', source_of(ControlEndpoints)))


def test_every_state_of_a_shard_is_listed() -> None:
    listed = [names(state)[0] for state, _ in rows("health-and-metrics.md", "`state`", "meaning")]
    assert sorted(listed) == sorted(state.name.lower() for state in WorkerState)


def source_of(kind: type) -> str:
    module = PROJECT / (kind.__module__.replace(".", "/") + ".py")
    return module.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "body"),
    [
        ("append.md", AppendRequest),
        ("append.md", NewRecord),
        ("append.md", ProducerSeq),
        ("read.md", DiffBody),
        ("read.md", CursorBody),
        ("delete.md", DeleteBody),
        ("routes.md", RouteBody),
        ("watch.md", WatchBody),
        ("watch.md", Position),
        ("websocket.md", StreamOptions),
        ("queues.md", ClaimBody),
        ("queues.md", NackBody),
        ("queues.md", ExtendBody),
        ("queues.md", RedriveBody),
    ],
)
def test_every_field_of_a_request_is_described(page: str, body: type[msgspec.Struct]) -> None:
    # The older name of `after_seq` is described once, in the index.
    fields = {field.encode_name for field in msgspec.structs.fields(body)} - {"from_seq"}
    text = (API / page).read_text(encoding="utf-8")
    described = set(re.findall(r"`(?:[\w.]+\.)?(\w+)`", text)) | set(re.findall(r'"(\w+)"', text))
    assert fields <= described


def test_every_page_of_the_api_is_linked_from_its_index() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)", (API / "index.md").read_text(encoding="utf-8")))
    assert linked == {path.name for path in API.glob("*.md")} - {"index.md"}
