"""All that a broker answers for shared topics: operations on one topic, and its endpoints.

The tables of operations come together here: those of this folder, and of what a
broker says about itself and its cluster (`service/cluster`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from shared.contract.errors import Refusal, not_supported
from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from topicsd.broker.broker import Broker
from topicsd.broker.read.reader import ROW_SECONDS
from topicsd.broker.topic_table import ANY_AGE
from topicsd.catalog.shared.shared_catalog import SharedTopic
from topicsd.service.call import Call
from topicsd.service.handlers import Handler
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shared.append import SharedAppendHandlers
from topicsd.service.shared.consume import ConsumeHandler
from topicsd.service.shared.names import LocalLookup, SharedNames, is_local_name
from topicsd.service.shared.produce import ProduceHandler
from topicsd.service.shared.topics import SeekTopic, SharedTopicHandlers

CREATING: Final = frozenset({"append", "append_record", "publish", "put_topic"})
"""Operations that may create a topic."""

FEATURES: Final = {
    **dict.fromkeys(("list_cursors", "put_cursor", "cursor_state", "delete_cursor"), "cursors"),
    **dict.fromkeys(("list_schedules", "put_schedule", "schedule_state", "delete_schedule"), "schedules"),
    **dict.fromkeys(("claim", "ack", "nack", "extend", "redrive", "explain"), "queues"),
    **dict.fromkeys(("owner", "seal", "adopt"), "ownership"),
    "move": "move",
    "restore": "restore",
}
"""The feature that an operation is of, for operations that a shared topic does not have."""


class SharedOperations:
    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        clock: Clock,
        counts: RequestCounts,
        seek: SeekTopic,
        reads: Mapping[str, Handler],
        endpoints: Mapping[str, Handler],
        find_local: LocalLookup,
        find_queue: LocalLookup,
    ) -> None:
        """`endpoints` are operations without a topic that others answer."""
        self.names = names = SharedNames(broker, clock, find_local, find_queue)
        self._topics = SharedTopicHandlers(broker, names, clock, counts.performance, seek)
        self._appends = SharedAppendHandlers(broker, names, settings, counts)
        self._table: Final[dict[str, Handler]] = {
            **{name: partial(_refuse_feature, feature) for name, feature in FEATURES.items()},
            **self._topics.table,
            **self._appends.table,
            **reads,
        }
        self.endpoints: Final[dict[str, Handler]] = {
            "produce": ProduceHandler(broker, names, settings, counts).start,
            "consume": ConsumeHandler(broker, counts).start,
            **endpoints,
        }

    def start(
        self,
        operation: str,
        call: Call,
        on_local: Callable[[], object],
        *,
        on_shared: Callable[[], object] = lambda: None,
    ) -> None:
        """Answer an operation on a shared topic, or call `on_local` when no shared topic has the name.

        `on_shared` is called before any answer that is given here, so the two are called once together.
        """

        def on_topic(topic: SharedTopic | Refusal | None) -> None:
            try:
                is_local = is_local_name(topic)
                makes_topic = is_local and self._makes_topic(operation, call)
                if is_local and not makes_topic:
                    on_local()
                    return
                on_shared()
                if isinstance(topic, Refusal):
                    call.refuse(topic)
                elif topic is not None:
                    self._table[operation](call)
                elif operation == "put_topic":
                    self._topics.create(call)
                else:
                    self._appends.create(operation, call)
            except Exception as error:
                call.fail(operation, error)

        # A refused feature notices no removal by another broker, unlike a commit or a read.
        seconds_max = ROW_SECONDS if operation in FEATURES else ANY_AGE
        self.names.find(call.name, on_topic, may_create=operation in CREATING, seconds_max=seconds_max)

    def _makes_topic(self, operation: str, call: Call) -> bool:
        """Return whether the request creates a missing topic as a shared one."""
        if operation == "put_topic":
            return self._topics.makes_topic(call)
        return self._appends.makes_topic(operation, call)


def _refuse_feature(feature: str, call: Call) -> None:
    call.refuse(not_supported(feature))
