"""The state that a worker publishes on the board twice a second, from existing counters."""

from __future__ import annotations

from shared.ipc.board import Slot
from shared.runtime.clock import Clock
from topicsd.engine.shard import Shard
from topicsd.service.request_counts import RequestCounts
from topicsd.store.metered import RequestTotals

BEAT_SECONDS = 0.5


class BoardPublisher:
    def __init__(self, slot: Slot, clock: Clock) -> None:
        self._slot = slot
        self._clock = clock
        self._due: float | None = None
        self._evicted_before = 0

    def beat(self) -> None:
        """Update the heartbeat, also during long work."""
        self._slot.beat_ms = int(self._clock.monotonic() * 1000)

    def beat_on_timer(self) -> None:
        """Update the heartbeat from a timer of the loop, and publish how late the timer fires."""
        now = self._clock.monotonic()
        slot = self._slot
        slot.beat_ms = int(now * 1000)
        if self._due is not None:
            late_us = max(0, int((now - self._due) * 1e6))
            slot.loop_late_us = late_us
            slot.loop_late_us_max = max(slot.loop_late_us_max, late_us)
        self._due = now + BEAT_SECONDS

    def begin(self, shard: Shard) -> None:
        """Exclude the evictions that the replay repeated from the published count."""
        self._evicted_before = shard.state.totals.evicted_count

    def publish(self, shard: Shard, requests: RequestCounts) -> None:
        slot, state, log = self._slot, shard.state, shard.log
        slot.topics = len(state.topics)
        by_class = state.totals.by_class
        slot.topics_ephemeral, slot.topics_memory = by_class["ephemeral"], by_class["memory"]
        slot.topics_disk, slot.topics_fsync = by_class["disk"], by_class["fsync"]
        slot.queue_topics = state.totals.queue_count
        slot.routes = len(state.routes)
        slot.leases_in_flight = state.totals.leases_in_flight
        slot.waiting_claims = sum(line.count for line in state.claim_lines.values())
        slot.scheduled_queues = len(state.queues_with_schedules)
        slot.scheduled_jobs_total = shard.schedules.job_count
        slot.records_live = state.totals.live_count
        slot.bytes_live = state.totals.live_bytes
        slot.idempotency_keys = state.idempotency_keys.count
        slot.log_files = state.files.count
        self._publish_log(shard)
        self._publish_pressure(shard)
        self._publish_store(shard)
        self._publish_node(shard)
        slot.waiting_writes = log.waiting_count
        slot.waiting_writes_max = max(slot.waiting_writes_max, log.waiting_count)
        slot.unsynced_bytes = max(0, log.unsynced_bytes)
        slot.is_rejecting_writes = int(log.failed is not None or log.is_disk_full)
        slot.appends_total = requests.appends.count
        slot.records_total = requests.appends.count + requests.records_beyond_first
        slot.reads_total = requests.reads.count + requests.waited_reads.count
        slot.evicted_total = state.totals.evicted_count - self._evicted_before
        slot.schema_refused_total = state.mismatches.refused
        slot.schema_accepted_total = state.mismatches.accepted
        slot.tombstones_total = requests.tombstones
        slot.uploads_total = requests.uploads
        slot.upload_lines_total = requests.upload_lines
        slot.upload_records_total = requests.upload_records
        slot.checkpoints_total = shard.checkpoints.count
        slot.checkpoint_has_failed = int(shard.checkpoints.failure is not None)
        slot.damaged_segments = len(state.damaged_segments)
        slot.append_us = requests.appends.words()
        slot.read_us = requests.reads.words()
        slot.waited_read_us = requests.waited_reads.words()
        slot.waited_claim_us = requests.waited_claims.words()
        slot.other_us = requests.others.words()

    def _publish_pressure(self, shard: Shard) -> None:
        slot, watch, pressure = self._slot, shard.state.wake_queue, shard.pressure.pressure
        slot.ready_count = len(watch.ready)
        slot.held_count = watch.ready.held_count
        slot.pressure_millionths = round(pressure.level * 1e6)
        slot.pressure_depth_millionths = round(pressure.depth * 1e6)
        slot.pressure_delay_millionths = round(pressure.delay * 1e6)
        slot.pressure_busy_millionths = round(pressure.busy * 1e6)
        slot.refused_under_pressure_total = shard.log.counters.refused_under_pressure
        slot.scheduler_us = watch.latency_us.words()

    def _publish_store(self, shard: Shard) -> None:
        slot, state, objects = self._slot, shard.state, shard.stores.objects
        slot.exported_segments, slot.exported_bytes = state.exported
        slot.objects_to_delete = len(state.objects_to_delete)
        slot.is_store_away = int(state.store_problem != "")
        slot.merged_segments_total = shard.upkeep.merged_count
        if objects is None:
            return
        cache = objects.cache
        publish_requests(slot, objects.store.totals)
        slot.store_cache_hits_total = cache.hits
        slot.store_cache_misses_total = cache.misses
        slot.store_cache_bytes = cache.size_bytes

    def _publish_node(self, shard: Shard) -> None:
        slot, clock = self._slot, self._clock
        slot.topics_departed = len(shard.state.departed)
        if shard.catalog is not None:
            catalog = shard.catalog.state
            slot.has_catalog = 1
            away_since = catalog.away_since
            slot.catalog_away_seconds = (
                0 if away_since is None else max(1, int(clock.monotonic() - away_since))
            )
            slot.catalog_requests_total = catalog.request_count
            slot.catalog_failures_total = catalog.failure_count
            slot.catalog_waiting = catalog.waiting_count
            slot.topics_near_ceiling = catalog.near_count
        if shard.exporter is not None:
            export = shard.exporter.state
            slot.is_export_away = int(export.problem != "")
            slot.export_waiting_segments = export.waiting_count
            slot.export_waiting_bytes = export.waiting_bytes
            age_ms = clock.now_ms() - export.oldest_ms if export.oldest_ms else 0
            slot.export_oldest_seconds = max(0, age_ms // 1000)
            slot.export_segments_total = export.segments
            slot.export_bytes_total = export.bytes
            slot.export_failures_total = export.failure_count
            slot.export_failed_ms = export.failed_ms

    def _publish_log(self, shard: Shard) -> None:
        slot, counters = self._slot, shard.log.counters
        slot.frames_total = counters.frames
        slot.batches_total = counters.batches
        slot.syncs_total = counters.syncs
        slot.sync_us_total = int(counters.sync_seconds * 1e6)
        slot.bytes_written_total = counters.bytes_written
        slot.throttled_total = counters.refused
        slot.rotations_total = shard.log.rotations
        # The totals are counted elsewhere.
        counters.sync_us.total = slot.sync_us_total
        counters.batch_frames.total = counters.frames
        slot.sync_us = counters.sync_us.words()
        slot.batch_frames = counters.batch_frames.words()


def publish_requests(slot: Slot, totals: RequestTotals) -> None:
    """Publish the requests of this process to the object store."""
    slot.store_creates_total = totals.creates
    slot.store_reads_total = totals.reads
    slot.store_infos_total = totals.infos
    slot.store_lists_total = totals.lists
    slot.store_deletes_total = totals.deletes
    slot.store_failures_total = totals.failures
    slot.store_bytes_read_total = totals.bytes_read
    slot.store_bytes_written_total = totals.bytes_written
