"""The events of jobs, derived from the frames of the log: claimed, extended, acked, ...

A frame records the new state of a job, not the event. An extension differs from a claim only by repeating the
lease number, so the current lease number of each job is kept.
"""

from __future__ import annotations

from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.engine.queue.job import DELAYED, IN_FLIGHT, READY
from topicsd.engine.queue.state import leases_of
from topicsd.log.control_frame import ControlPayload, Delete, Lease


class JobEvents:
    """The leases named by the frames so far, by which the event of the next frame is derived."""

    def __init__(self) -> None:
        self._leases: dict[tuple[int, int], int] = {}
        """The lease numbers by topic id and seq."""

    def start_from(self, snapshot: Snapshot) -> None:
        """Add the leases that a snapshot holds and no frame so far has named."""
        for topic in snapshot.topics:
            for seq, lease in leases_of(topic.sections):
                self._leases.setdefault((topic.topic_id, seq), lease)

    def event(self, topic_id: int, control: ControlPayload) -> str | None:
        """Return the event that a control frame records, or None when it names no jobs."""
        if isinstance(control, Delete):
            return self._delete_event(topic_id, control)
        if isinstance(control, Lease):
            return self._lease_event(topic_id, control)
        return None

    def _delete_event(self, topic_id: int, control: Delete) -> str:
        for seq in control.seqs:
            self._leases.pop((topic_id, seq), None)
        if control.is_dead_letter:
            return "dead_lettered"
        return "acked" if control.seqs and not control.is_asked else "deleted"

    def _lease_event(self, topic_id: int, control: Lease) -> str:
        keys = [(topic_id, seq) for seq in control.seqs]
        if control.state == IN_FLIGHT:
            known = [self._leases.get(key) for key in keys]
            self._leases.update(zip(keys, control.leases, strict=True))
            return "extended" if known == control.leases else "claimed"
        for key in keys:
            self._leases.pop(key, None)
        if control.state == READY and control.priority:
            return "prioritized"
        if control.state == READY or (control.state == DELAYED and any(control.deliveries)):
            return "released"
        return "delayed" if control.state == DELAYED else "parked"
