"""Tables of the metrics: of each shard, with labels, histograms, and of the supervisor.

The values of a shard are read from the board and may be 0.5 s old. A metric that the reference implementation
also has keeps its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from shared.ipc.board import Slot, WorkerState

Kind = Literal["gauge", "counter"]


class ShardMetric(NamedTuple):
    """One metric of each slot; its name also names the total over all slots."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Slot], float]


class ShardFamily(NamedTuple):
    """Metrics of each slot under one name, with a label that distinguishes them."""

    name: str
    kind: Kind
    help: str
    series: tuple[tuple[str, Callable[[Slot], float]], ...]


class ConnectionCounts(NamedTuple):
    """The counters of the supervisor and the acceptors together."""

    accepted: int = 0
    handed_over: int = 0
    refused: int = 0
    waiting: int = 0
    control: int = 0
    restarts: int = 0


class ConnectionMetric(NamedTuple):
    name: str
    kind: Kind
    help: str
    read: Callable[[ConnectionCounts], int]


class ShardHistogram(NamedTuple):
    """A histogram of each slot, as counts of `shared/runtime/histogram.py`.

    `first` and `last` are the buckets whose bounds are shown.
    """

    name: str
    help: str
    first: int
    last: int
    series: tuple[tuple[str, Callable[[Slot], list[int]]], ...]
    """Label and values of each series; a single series has an empty label."""


def counter(name: str, text: str, read: Callable[[Slot], float]) -> ShardMetric:
    return ShardMetric(name, "counter", text, read)


def gauge(name: str, text: str, read: Callable[[Slot], float]) -> ShardMetric:
    return ShardMetric(name, "gauge", text, read)


def progress(slot: Slot) -> float:
    """Return the replayed share of the log of a shard, from 0 to 1."""
    if slot.state in (WorkerState.READY, WorkerState.DRAINING):
        return 1.0
    done, total = slot.replay_done, slot.replay_total
    return round(min(done / total, 1.0), 4) if total else 0.0


SHARD_METRICS: Final[tuple[ShardMetric, ...]] = (
    gauge("topics_topics", "Topics.", lambda slot: slot.topics),
    gauge("topics_routers", "Routes into topics of the shard.", lambda slot: slot.routes),
    gauge("topics_records_live", "Live records.", lambda slot: slot.records_live),
    gauge("topics_bytes_live", "Bytes of live records.", lambda slot: slot.bytes_live),
    gauge("topics_idempotency_keys", "Remembered idempotency keys.", lambda slot: slot.idempotency_keys),
    gauge("topics_connections", "Connections of clients.", lambda slot: slot.connections),
    gauge("topics_queue_topics", "Topics that are queues.", lambda slot: slot.queue_topics),
    gauge(
        "topics_queue_leases_in_flight",
        "Leased jobs.",
        lambda slot: slot.leases_in_flight,
    ),
    gauge("topics_queue_waiting_claims", "Claims that wait for a job.", lambda slot: slot.waiting_claims),
    gauge("topics_scheduled_queues", "Queues with schedules.", lambda slot: slot.scheduled_queues),
    counter(
        "topics_scheduled_jobs_total", "Jobs added by schedules.", lambda slot: slot.scheduled_jobs_total
    ),
    gauge("topics_watch_sessions", "Watch sessions.", lambda slot: slot.watch_sessions),
    gauge(
        "topics_sse_lagging",
        "Streams and WebSockets whose clients have not read for 5 seconds.",
        lambda slot: slot.lagging_streams,
    ),
    gauge(
        "topics_sse_connections",
        "Streams of watch sessions, of topics and of jobs, and WebSockets.",
        lambda slot: slot.sse_connections,
    ),
    gauge("topics_topic_streams", "Streams of topics without a session.", lambda slot: slot.topic_streams),
    gauge(
        "topics_topic_searches",
        "Searches of streams and WebSockets for topics that do not exist yet.",
        lambda slot: slot.topic_searches,
    ),
    counter(
        "topics_uploads_total",
        "Uploads of lines of JSON that wrote records.",
        lambda slot: slot.uploads_total,
    ),
    counter(
        "topics_upload_lines_total",
        "Lines of these uploads that were written.",
        lambda slot: slot.upload_lines_total,
    ),
    counter(
        "topics_upload_records_total",
        "Records of these uploads, without repeated ones.",
        lambda slot: slot.upload_records_total,
    ),
    counter("topics_appends_total", "Acknowledged writes.", lambda slot: slot.appends_total),
    counter("topics_records_total", "Records of acknowledged writes.", lambda slot: slot.records_total),
    counter("topics_reads_total", "Answered reads.", lambda slot: slot.reads_total),
    counter("topics_evictions_total", "Records evicted by a cap or by age.", lambda slot: slot.evicted_total),
    counter(
        "topics_schema_refused_total",
        "Writes refused because a record broke the schema of its topic.",
        lambda slot: slot.schema_refused_total,
    ),
    counter(
        "topics_schema_accepted_total",
        "Records accepted although they broke the schema of their topic (`schema_mode` `warn`).",
        lambda slot: slot.schema_accepted_total,
    ),
    counter(
        "topics_checkpoints_total",
        "Checkpoints: moves of records from the log into segments.",
        lambda slot: slot.checkpoints_total,
    ),
    gauge(
        "topics_checkpoint_failed",
        "1 when the last checkpoint failed; the log keeps its records.",
        lambda slot: slot.checkpoint_has_failed,
    ),
    gauge(
        "topics_damaged_segments",
        "Damaged segments.",
        lambda slot: slot.damaged_segments,
    ),
    counter(
        "topics_tombstones_total",
        "Reads that reported lost records.",
        lambda slot: slot.tombstones_total,
    ),
    counter(
        "topics_webhook_requests_total",
        "Requests of webhooks that ended.",
        lambda slot: slot.webhook_requests_total,
    ),
    counter(
        "topics_webhook_failures_total",
        "Requests of webhooks that were not accepted.",
        lambda slot: slot.webhook_failures_total,
    ),
    counter(
        "topics_webhook_dead_batches_total",
        "Batches of webhooks that went to a dead-letter topic.",
        lambda slot: slot.webhook_dead_batches_total,
    ),
    gauge(
        "topics_webhooks_open",
        "Webhooks whose circuit breaker is open.",
        lambda slot: slot.webhooks_open,
    ),
    counter(
        "topics_requests_forwarded_total",
        "Requests answered by another process over the link.",
        lambda slot: slot.forwarded_total,
    ),
    counter(
        "topics_connections_moved_total",
        "Connections closed to be placed at the worker that their requests are for.",
        lambda slot: slot.misplaced_total,
    ),
    counter(
        "topics_adoption_pauses_total",
        "Pauses in receiving connections because of too few free descriptors.",
        lambda slot: slot.receiver_pauses_total,
    ),
    counter("topics_wal_frames_total", "Frames written.", lambda slot: slot.frames_total),
    counter("topics_wal_batches_total", "Batches written.", lambda slot: slot.batches_total),
    counter("topics_wal_fsyncs_total", "Syncs of the log.", lambda slot: slot.syncs_total),
    counter(
        "topics_wal_bytes_written_total", "Bytes written to the log.", lambda slot: slot.bytes_written_total
    ),
    counter("topics_wal_rotations_total", "WAL files that became full.", lambda slot: slot.rotations_total),
    gauge("topics_wal_files", "WAL files.", lambda slot: slot.log_files),
    gauge("topics_wal_unsynced_bytes", "Bytes written and not yet synced.", lambda slot: slot.unsynced_bytes),
    gauge("topics_wal_queue_depth", "Writes that wait for a sync.", lambda slot: slot.waiting_writes),
    gauge(
        "topics_wal_queue_depth_peak",
        "Maximum number of writes that waited for a sync.",
        lambda slot: slot.waiting_writes_max,
    ),
    counter(
        "topics_wal_submit_full_total",
        "Requests refused because the commit queue was full.",
        lambda slot: slot.throttled_total,
    ),
    gauge(
        "topics_wal_read_only",
        "1 while the shard is read-only: its disk is full or has failed.",
        lambda slot: slot.is_rejecting_writes,
    ),
    gauge(
        "topics_loop_late_us",
        "Delay of the event loop at the last heartbeat.",
        lambda slot: slot.loop_late_us,
    ),
    gauge(
        "topics_loop_late_us_peak",
        "Maximum delay of the event loop at a heartbeat.",
        lambda slot: slot.loop_late_us_max,
    ),
    gauge(
        "topics_scheduler_ready",
        "Changed topics that wait for delivery.",
        lambda slot: slot.ready_count,
    ),
    gauge(
        "topics_scheduler_held",
        "Changed topics whose delivery is paused because of their negative priority.",
        lambda slot: slot.held_count,
    ),
    gauge(
        "topics_pressure",
        "Pressure of the shard, from 0 to 1.",
        lambda slot: slot.pressure_millionths / 1e6,
    ),
    gauge(
        "topics_pressure_ready",
        "Pressure because of topics that wait for delivery, from 0 to 1.",
        lambda slot: slot.pressure_depth_millionths / 1e6,
    ),
    gauge(
        "topics_pressure_delay",
        "Pressure because of the delay of the event loop, from 0 to 1.",
        lambda slot: slot.pressure_delay_millionths / 1e6,
    ),
    gauge(
        "topics_pressure_disk",
        "Pressure because of the share of time spent in syncs, from 0 to 1; alone it has little weight.",
        lambda slot: slot.pressure_busy_millionths / 1e6,
    ),
    counter(
        "topics_throttled_by_pressure_total",
        "Writes refused because of pressure, before a cap was reached.",
        lambda slot: slot.refused_under_pressure_total,
    ),
    gauge(
        "topics_store_away",
        "1 while exports pause because the object store is not usable.",
        lambda slot: slot.is_store_away,
    ),
    gauge(
        "topics_store_segments",
        "Segments that have objects in the store.",
        lambda slot: slot.exported_segments,
    ),
    gauge("topics_store_bytes", "Bytes of these segments.", lambda slot: slot.exported_bytes),
    gauge(
        "topics_store_deletes_waiting",
        "Segments whose objects are still to be deleted.",
        lambda slot: slot.objects_to_delete,
    ),
    counter(
        "topics_store_failures_total",
        "Failed requests to the object store.",
        lambda slot: slot.store_failures_total,
    ),
    counter(
        "topics_store_bytes_read_total",
        "Bytes read from the object store.",
        lambda slot: slot.store_bytes_read_total,
    ),
    counter(
        "topics_store_bytes_written_total",
        "Bytes written to the object store.",
        lambda slot: slot.store_bytes_written_total,
    ),
    counter(
        "topics_store_cache_hits_total",
        "Blocks of objects that were in memory.",
        lambda slot: slot.store_cache_hits_total,
    ),
    counter(
        "topics_store_cache_misses_total",
        "Blocks of objects that were not in memory.",
        lambda slot: slot.store_cache_misses_total,
    ),
    gauge(
        "topics_store_cache_bytes",
        "Memory for blocks of objects.",
        lambda slot: slot.store_cache_bytes,
    ),
    counter(
        "topics_store_merged_segments_total",
        "Small exported segments that were merged into others.",
        lambda slot: slot.merged_segments_total,
    ),
    counter(
        "topics_moves_total",
        "Topics moved to another shard.",
        lambda slot: slot.topics_moved_total,
    ),
    counter(
        "topics_move_failures_total",
        "Moves of topics that failed; the topic stayed.",
        lambda slot: slot.topic_moves_failed_total,
    ),
    gauge(
        "topics_move_pause_ms",
        "Pause of writes in the last move of a topic.",
        lambda slot: slot.move_pause_us / 1000,
    ),
    gauge(
        "topics_export_waiting_segments",
        "Sealed segments that are not exported.",
        lambda slot: slot.export_waiting_segments,
    ),
    gauge("topics_export_waiting_bytes", "Bytes of these segments.", lambda slot: slot.export_waiting_bytes),
    gauge(
        "topics_export_oldest_seconds",
        "Age of the oldest record that was never exported.",
        lambda slot: slot.export_oldest_seconds,
    ),
    counter("topics_export_segments_total", "Exported segments.", lambda slot: slot.export_segments_total),
    counter("topics_export_bytes_total", "Bytes of exported segments.", lambda slot: slot.export_bytes_total),
    counter(
        "topics_export_failures_total", "Failed rounds of exports.", lambda slot: slot.export_failures_total
    ),
    gauge(
        "topics_export_last_failure_seconds",
        "Time of the last failed round, in seconds since 1970; 0 without one.",
        lambda slot: slot.export_failed_ms / 1000,
    ),
    gauge(
        "topics_catalog_away_seconds",
        "Time since which the catalog does not answer; 0 while it answers.",
        lambda slot: slot.catalog_away_seconds,
    ),
    counter(
        "topics_catalog_requests_total", "Requests to the catalog.", lambda slot: slot.catalog_requests_total
    ),
    counter(
        "topics_catalog_failures_total",
        "Requests that the catalog did not answer.",
        lambda slot: slot.catalog_failures_total,
    ),
    gauge(
        "topics_catalog_waiting",
        "Topics whose rows in the catalog have to be created, changed or removed.",
        lambda slot: slot.catalog_waiting,
    ),
    gauge(
        "topics_near_ceiling",
        "Topics that have used most of the seqs that the catalog granted.",
        lambda slot: slot.topics_near_ceiling,
    ),
    gauge(
        "topics_departed",
        "Topics that were here and that this node must not serve.",
        lambda slot: slot.topics_departed,
    ),
    gauge("topics_recovery_progress", "Share of the log that recovery has replayed.", progress),
    gauge("topics_shard_ready", "1 while the shard serves.", lambda slot: slot.state is WorkerState.READY),
    gauge(
        "topics_shard_draining",
        "1 while the worker drains.",
        lambda slot: slot.state is WorkerState.DRAINING,
    ),
)

SHARD_FAMILIES: Final[tuple[ShardFamily, ...]] = (
    ShardFamily(
        "topics_topics_by_class",
        "gauge",
        "Topics, by durability class.",
        (
            ('class="ephemeral"', lambda slot: slot.topics_ephemeral),
            ('class="memory"', lambda slot: slot.topics_memory),
            ('class="disk"', lambda slot: slot.topics_disk),
            ('class="fsync"', lambda slot: slot.topics_fsync),
        ),
    ),
    ShardFamily(
        "topics_store_requests_total",
        "counter",
        "Requests to the object store, by kind.",
        (
            ('kind="create"', lambda slot: slot.store_creates_total),
            ('kind="read"', lambda slot: slot.store_reads_total),
            ('kind="info"', lambda slot: slot.store_infos_total),
            ('kind="list"', lambda slot: slot.store_lists_total),
            ('kind="delete"', lambda slot: slot.store_deletes_total),
        ),
    ),
)

CONNECTION_METRICS: Final[tuple[ConnectionMetric, ...]] = (
    ConnectionMetric(
        "topics_front_connections_accepted_total",
        "counter",
        "Accepted connections.",
        lambda counts: counts.accepted,
    ),
    ConnectionMetric(
        "topics_front_connections_handed_over_total",
        "counter",
        "Connections handed over to a worker.",
        lambda counts: counts.handed_over,
    ),
    ConnectionMetric(
        "topics_front_connections_refused_total",
        "counter",
        "Refused connections: no worker, no capacity, or no request line in time.",
        lambda counts: counts.refused,
    ),
    ConnectionMetric(
        "topics_front_connections_waiting",
        "gauge",
        "Connections that wait for their request line or for room in a full channel.",
        lambda counts: counts.waiting,
    ),
    ConnectionMetric(
        "topics_front_connections_control",
        "gauge",
        "Connections that the supervisor answers itself.",
        lambda counts: counts.control,
    ),
    ConnectionMetric(
        "topics_front_restarts_total",
        "counter",
        "Restarts of acceptors.",
        lambda counts: counts.restarts,
    ),
)

SHARD_HISTOGRAMS: Final[tuple[ShardHistogram, ...]] = (
    ShardHistogram(
        "topics_request_latency_us",
        "Time from reading a request to its answer, by kind. A waited_read or waited_claim had to wait.",
        4,
        25,
        (
            ('operation="append"', lambda slot: slot.append_us),
            ('operation="read"', lambda slot: slot.read_us),
            ('operation="waited_read"', lambda slot: slot.waited_read_us),
            ('operation="waited_claim"', lambda slot: slot.waited_claim_us),
            ('operation="other"', lambda slot: slot.other_us),
        ),
    ),
    ShardHistogram(
        "topics_wal_fsync_latency_us", "Duration of a sync.", 4, 25, (("", lambda slot: slot.sync_us),)
    ),
    ShardHistogram(
        "topics_scheduler_latency_us",
        "Time from a change to its delivery, including delays by pressure.",
        4,
        25,
        (("", lambda slot: slot.scheduler_us),),
    ),
    ShardHistogram(
        "topics_wal_batch_frames",
        "Frames in a batch, including its BatchEnd.",
        0,
        17,
        (("", lambda slot: slot.batch_frames),),
    ),
)
