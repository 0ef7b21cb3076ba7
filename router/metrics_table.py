"""What is measured, as one table, and its two renderings: Prometheus text and JSON.

The numbers come from the board and from the front process; a reader of the board may see one that is half a
second old. Every series has a bounded number of labels: the shards.

Must not know: HTTP, where a number comes from beyond its source here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from shared.board import Slot, WorkerState

Kind = Literal["gauge", "counter"]


class ShardMetric(NamedTuple):
    """One number of each slot; also their sum, under the same name, where `is_summed`."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Slot], float]


class Sample(NamedTuple):
    """One number of the whole server."""

    name: str
    kind: Kind
    help: str
    value: float


SHARD_METRICS: Final[tuple[ShardMetric, ...]] = (
    ShardMetric("topics_topics", "gauge", "Topics.", lambda slot: slot.topics),
    ShardMetric("topics_records_live", "gauge", "Live records.", lambda slot: slot.records_live),
    ShardMetric("topics_bytes_live", "gauge", "Bytes of live records.", lambda slot: slot.bytes_live),
    ShardMetric("topics_connections", "gauge", "Connections of clients.", lambda slot: slot.connections),
    ShardMetric(
        "topics_appends_total", "counter", "Writes that were acked.", lambda slot: slot.appends_total
    ),
    ShardMetric(
        "topics_records_total", "counter", "Records that were acked.", lambda slot: slot.records_total
    ),
    ShardMetric("topics_reads_total", "counter", "Reads that were answered.", lambda slot: slot.reads_total),
    ShardMetric(
        "topics_requests_forwarded_total",
        "counter",
        "Requests that were answered by another process over the link.",
        lambda slot: slot.forwarded_total,
    ),
    ShardMetric(
        "topics_connections_moved_total",
        "counter",
        "Connections that a worker handed to another.",
        lambda slot: slot.handed_over_total,
    ),
    ShardMetric("topics_wal_frames_total", "counter", "Frames written.", lambda slot: slot.frames_total),
    ShardMetric("topics_wal_batches_total", "counter", "Batches written.", lambda slot: slot.batches_total),
    ShardMetric("topics_wal_fsyncs_total", "counter", "Syncs of the log.", lambda slot: slot.syncs_total),
    ShardMetric(
        "topics_wal_fsync_us_total", "counter", "Time spent in syncs, in us.", lambda slot: slot.sync_us_total
    ),
    ShardMetric(
        "topics_wal_bytes_written_total",
        "counter",
        "Bytes written to the log.",
        lambda slot: slot.bytes_written_total,
    ),
    ShardMetric(
        "topics_wal_unsynced_bytes",
        "gauge",
        "Bytes that are written and not yet synced.",
        lambda slot: slot.unsynced_bytes,
    ),
    ShardMetric(
        "topics_throttled_total",
        "counter",
        "Writes refused under pressure.",
        lambda slot: slot.throttled_total,
    ),
    ShardMetric(
        "topics_recovery_progress",
        "gauge",
        "Share of the log that recovery has read.",
        lambda slot: progress(slot),
    ),
    ShardMetric(
        "topics_shard_ready",
        "gauge",
        "1 while the shard serves.",
        lambda slot: slot.state is WorkerState.READY,
    ),
)


def progress(slot: Slot) -> float:
    """How much of its log a shard has replayed, from 0 to 1."""
    if slot.state in (WorkerState.READY, WorkerState.DRAINING):
        return 1.0
    done, total = slot.replay_done, slot.replay_total
    return round(min(done / total, 1.0), 4) if total else 0.0


def as_prometheus(slots: Iterable[Slot], samples: Iterable[Sample], more: Mapping[str, list[float]]) -> str:
    """`more` are numbers by shard that are not on the board: their names begin as those of the table do."""
    lines: list[str] = []
    slots = list(slots)
    for sample in samples:
        lines += _header(sample.name, sample.kind, sample.help)
        lines.append(f"{sample.name} {_number(sample.value)}")
    for metric in SHARD_METRICS:
        lines += _header(metric.name, metric.kind, metric.help)
        lines += _series(metric.name, [metric.read(slot) for slot in slots])
    for name, values in more.items():
        lines += _header(name, "counter" if name.endswith("_total") else "gauge", "")
        lines += _series(name, values)
    return "\n".join(lines) + "\n"


def as_json(
    slots: Iterable[Slot], samples: Iterable[Sample], more: Mapping[str, list[float]]
) -> dict[str, object]:
    """The sums of all shards and, under `shards`, each shard's own."""
    slots = list(slots)
    by_shard: list[dict[str, object]] = [{"shard": shard} for shard in range(len(slots))]
    found: dict[str, object] = {sample.name: _plain(sample.value) for sample in samples}
    table = {metric.name: [metric.read(slot) for slot in slots] for metric in SHARD_METRICS}
    for name, values in {**table, **more}.items():
        for one, value in zip(by_shard, values, strict=True):
            one[name] = _plain(value)
        # A mean of shares and flags would be no share: of those the least stands for all.
        is_share = name in ("topics_recovery_progress", "topics_shard_ready")
        found[name] = _plain(min(values) if is_share else sum(values))
    return {**found, "shards": by_shard}


def _header(name: str, kind: Kind, text: str) -> list[str]:
    return [*([f"# HELP {name} {text}"] if text else []), f"# TYPE {name} {kind}"]


def _series(name: str, values: list[float]) -> list[str]:
    return [f'{name}{{shard="{shard}"}} {_number(value)}' for shard, value in enumerate(values)]


def _number(value: float) -> str:
    plain = _plain(value)
    return str(plain) if isinstance(plain, int) else repr(plain)


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value
