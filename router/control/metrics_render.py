"""The metrics of the server as Prometheus text and as JSON.

The number of series is bounded by the number of shards, and by the topics and routes that the query asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from router.control.broker_metrics import BROKER_METRICS
from router.control.metrics_table import (
    SHARD_FAMILIES,
    SHARD_HISTOGRAMS,
    SHARD_METRICS,
    Kind,
    ShardHistogram,
    ShardMetric,
)
from shared.ipc.board import Slot
from shared.runtime.histogram import BUCKETS, bounds
from shared.runtime.histogram import WORDS as HISTOGRAM_WORDS
from shared.text.prometheus import family_header

# For each topic: the series, the field in a list of topics, and the help text.
TOPIC_SERIES: Final = (
    ("topics_topic_head_seq", "head_seq", "The highest sequence number."),
    ("topics_topic_earliest_seq", "earliest_seq", "The first live sequence number."),
    ("topics_topic_records_live", "count", "Live records."),
    ("topics_topic_bytes_live", "bytes", "Bytes of live records."),
)
CURSOR_SERIES: Final = (
    ("topics_cursor_lag_records", "lag_records", "Live records behind a named cursor."),
    ("topics_cursor_lag_bytes", "lag_bytes", "Bytes of live records behind a named cursor."),
    ("topics_cursor_lag_seconds", "lag_seconds", "Age of the oldest live record behind a named cursor."),
)
ROUTE_SERIES: Final = ("topics_router_forwarded_total", "forwarded_total", "Copies made by a route.")
# For each queue: the same.
QUEUE_SERIES: Final = (
    ("topics_queue_oldest_ready_seconds", "oldest_ready_seconds", "Age of the oldest ready job."),
    ("topics_topic_queue_ready", "ready", "Jobs that a claim would lease."),
    ("topics_topic_queue_in_flight", "in_flight", "Leased jobs."),
)
# The mean of shares or flags is meaningless: their total is the value of the lowest, or the highest, shard.
_MIN_METRICS: Final = ("topics_recovery_progress", "topics_shard_ready")
_MAX_METRICS: Final = (
    "topics_store_away",
    "topics_export_oldest_seconds",
    "topics_export_last_failure_seconds",
    "topics_catalog_away_seconds",
    "topics_wal_read_only",
    "topics_wal_queue_depth_peak",
    "topics_checkpoint_failed",
    "topics_shard_draining",
    "topics_loop_late_us",
    "topics_loop_late_us_peak",
    "topics_pressure",
    "topics_pressure_ready",
    "topics_pressure_delay",
    "topics_pressure_disk",
    "topics_broker_queue_ms",
    "topics_broker_catalog_away_seconds",
)


class ServerSample(NamedTuple):
    """One metric of the whole server."""

    name: str
    kind: Kind
    help: str
    value: float


class ShardSample(NamedTuple):
    """One metric with a value for each shard, or each broker, that is not on the board."""

    name: str
    kind: Kind
    help: str
    values: Sequence[float]


class MetricValues(NamedTuple):
    slots: Sequence[Slot]
    samples: Sequence[ServerSample]
    by_shard: Sequence[ShardSample]
    topics: Sequence[Mapping[str, Any]]
    """The topics, as entries of the list of topics."""
    routers: Sequence[Mapping[str, Any]]
    """The routes, as entries of the list of routes."""
    brokers: Sequence[Slot] = ()
    by_broker: Sequence[ShardSample] = ()
    """As `by_shard`."""


def as_prometheus(metrics: MetricValues) -> str:
    lines: list[str] = []
    for sample in metrics.samples:
        lines += family_header(sample.name, sample.kind, sample.help)
        lines.append(f"{sample.name} {_number(sample.value)}")
    for one in (*_read(metrics.slots), *metrics.by_shard):
        lines += family_header(one.name, one.kind, one.help)
        lines += _series(one.name, one.values)
    for one in (*_read(metrics.brokers, BROKER_METRICS), *metrics.by_broker) if metrics.brokers else ():
        lines += family_header(one.name, one.kind, one.help)
        lines += _series(one.name, one.values, label="broker")
    for family in SHARD_FAMILIES:
        lines += family_header(family.name, family.kind, family.help)
        for label, read in family.series:
            lines += _series(family.name, [read(slot) for slot in metrics.slots], f",{label}")
    for histogram in SHARD_HISTOGRAMS:
        lines += family_header(histogram.name, "histogram", histogram.help)
        for shard, slot in enumerate(metrics.slots):
            lines += _histogram(histogram, shard, slot)
    if metrics.topics:
        for name, field, text in TOPIC_SERIES:
            lines += family_header(name, "gauge", text)
            # Topic names contain no character that needs escaping.
            lines += [f'{name}{{topic="{topic["topic"]}"}} {topic[field]}' for topic in metrics.topics]
    lines += _cursor_lines(metrics.topics)
    if metrics.routers:
        name, field, text = ROUTE_SERIES
        lines += family_header(name, "counter", text)
        lines += [f'{name}{{router="{router["router"]}"}} {router[field]}' for router in metrics.routers]
    lines += _queue_lines(metrics.topics)
    return "\n".join(lines) + "\n"


def as_json(metrics: MetricValues) -> dict[str, object]:
    """Return totals at the top level, and single values in `shards`, `topics` and `routers`."""
    by_shard: list[dict[str, object]] = [{"shard": shard} for shard in range(len(metrics.slots))]
    by_broker: list[dict[str, object]] = [{"broker": number} for number in range(len(metrics.brokers))]
    totals: dict[str, object] = {sample.name: _plain(sample.value) for sample in metrics.samples}
    for name, _, _, values in (*_read(metrics.slots), *metrics.by_shard):
        for one, value in zip(by_shard, values, strict=True):
            one[name] = _plain(value)
        totals[name] = _plain(_whole(name, values))
    for name, _, _, values in (*_read(metrics.brokers, BROKER_METRICS), *metrics.by_broker):
        for one, value in zip(by_broker, values, strict=True):
            one[name] = _plain(value)
        if metrics.brokers:
            totals[name] = _plain(_whole(name, values))
    for family in SHARD_FAMILIES:
        for target, slots in _objects_with_slots(totals, by_shard, metrics.slots):
            target[family.name] = {
                _label_value(label): _plain(sum(map(read, slots))) for label, read in family.series
            }
    for histogram in SHARD_HISTOGRAMS:
        for target, slots in _objects_with_slots(totals, by_shard, metrics.slots):
            series = {
                _label_value(label): _summary(_added([read(slot) for slot in slots]))
                for label, read in histogram.series
            }
            target[histogram.name] = series.get("", series)
    fields = ("topic", *_TOPIC_FIELDS, "cursors", *_QUEUE_FIELDS)
    topics = [{field: one[field] for field in fields if field in one} for one in metrics.topics]
    field = ROUTE_SERIES[1]
    routers = [{"router": one["router"], field: one[field]} for one in metrics.routers]
    brokers: dict[str, object] = {"brokers": by_broker} if by_broker else {}
    return {**totals, "shards": by_shard, **brokers, "topics": topics, "routers": routers}


def _whole(name: str, values: Sequence[float]) -> float:
    """Return the total of a metric over all shards, or over all brokers."""
    if name in _MIN_METRICS:
        return min(values, default=1)
    return max(values, default=0) if name in _MAX_METRICS else sum(values)


def _added(histograms: Sequence[Sequence[int]]) -> list[int]:
    """Return the sums of the words of histograms, also of none."""
    return [sum(words) for words in zip(*histograms, strict=True)] if histograms else [0] * HISTOGRAM_WORDS


def _read(slots: Sequence[Slot], metrics: Sequence[ShardMetric] = SHARD_METRICS) -> Iterator[ShardSample]:
    for metric in metrics:
        yield ShardSample(metric.name, metric.kind, metric.help, [metric.read(slot) for slot in slots])


def _objects_with_slots(
    totals: dict[str, object], by_shard: list[dict[str, object]], slots: Sequence[Slot]
) -> list[tuple[dict[str, object], Sequence[Slot]]]:
    """Return each target object with its slots: the totals with all, each shard with its own."""
    return [(totals, slots), *((one, [slot]) for one, slot in zip(by_shard, slots, strict=True))]


_TOPIC_FIELDS: Final = tuple(field for _, field, _ in TOPIC_SERIES)
_QUEUE_FIELDS: Final = tuple(field for _, field, _ in QUEUE_SERIES)


def _cursor_lines(topics: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    cursors = [(topic["topic"], cursor) for topic in topics for cursor in topic.get("cursors", ())]
    for name, field, text in CURSOR_SERIES if cursors else ():
        yield from family_header(name, "gauge", text)
        for topic, cursor in cursors:
            yield f'{name}{{topic="{topic}",cursor="{cursor["cursor"]}"}} {_number(cursor[field])}'


def _queue_lines(topics: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for name, field, text in QUEUE_SERIES:
        queues = [topic for topic in topics if field in topic]
        if queues:
            yield from family_header(name, "gauge", text)
        for topic in queues:
            yield f'{name}{{topic="{topic["topic"]}"}} {_number(topic[field])}'


def _histogram(histogram: ShardHistogram, shard: int, slot: Slot) -> Iterable[str]:
    for label, read in histogram.series:
        words = read(slot)
        labels = f'shard="{shard}"' + (f",{label}" if label else "")
        below = list(accumulate(words[: BUCKETS + 1]))
        for bucket in range(histogram.first, histogram.last + 1):
            yield f'{histogram.name}_bucket{{{labels},le="{1 << bucket}"}} {below[bucket]}'
        yield f'{histogram.name}_bucket{{{labels},le="+Inf"}} {below[-1]}'
        yield f"{histogram.name}_sum{{{labels}}} {words[-1]}"
        yield f"{histogram.name}_count{{{labels}}} {below[-1]}"


def _summary(words: list[int]) -> dict[str, object]:
    """Return count, sum and quantile bounds of a histogram, for a person."""
    counts = words[: BUCKETS + 1]
    count = sum(counts)
    shares = {"below_p50": 0.5, "below_p99": 0.99, "below_p999": 0.999}
    return {
        "count": count,
        "sum": words[-1],
        **{name: _bound_of(counts, count * share) for name, share in shares.items() if count},
    }


def _bound_of(counts: list[int], rank: float) -> int | None:
    """Return the least bound that covers `rank` values; None for the unbounded bucket.

    >>> _bound_of([0, 90, 0, 10] + [0] * 27, 50), _bound_of([0, 90, 0, 10] + [0] * 27, 99)
    (2, 8)
    """
    seen = 0
    for count, bound in zip(counts, bounds(), strict=False):
        seen += count
        if seen >= rank:
            return bound
    return None


def _label_value(label: str) -> str:
    """Return the value of a label, or an empty text.

    >>> _label_value('operation="read"'), _label_value("")
    ('read', '')
    """
    return label.partition("=")[2].strip('"')


def _series(name: str, values: Sequence[float], more: str = "", label: str = "shard") -> list[str]:
    return [f'{name}{{{label}="{number}"{more}}} {_number(value)}' for number, value in enumerate(values)]


def _number(value: float) -> str:
    plain = _plain(value)
    return str(plain) if isinstance(plain, int) else repr(plain)


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value
