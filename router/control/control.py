"""The control endpoints: health, readiness, metrics, and the lists of topics and routes.

The functions take an operation and its query, so the response is the same for a request on a connection of
the supervisor and for one that a worker sends over the link.

C1  The server is ready while every shard serves. With `allow_degraded=true` it is also ready, as degraded,
    from the time at which every shard has been ready or has refused to start, and at least one has served,
    until shutdown.
C3  A broker that is down does not make the server unready, since shards serve without it: the answer says
    `degraded`. Only its first start is waited for, until it is ready or has a reason not to be. A node
    without shards is ready while a broker serves.
C2  Every JSON response except an error carries `performance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from router.control.backup_points import BackupPoints
from router.control.metrics_render import MetricValues, ServerSample, ShardSample, as_json, as_prometheus
from router.control.metrics_table import CONNECTION_METRICS, ConnectionCounts, progress
from router.control.store_answer import problems_of, store_answer
from router.control.topic_list import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    ListPage,
    ListQuery,
    ListShard,
    TopicList,
    bad_cursor,
    list_page,
    name_of_cursor,
)
from shared.contract.endpoints import ENDPOINTS
from shared.contract.errors import FORBIDDEN, NOT_IMPLEMENTED, STATUS, Refusal, not_ready, shutting_down
from shared.contract.names import is_topic_name
from shared.contract.query import query_boolean, query_number, query_text
from shared.http.answer import refusal_body, refusal_fields
from shared.ipc.board import Board, Slot, WorkerState
from shared.ipc.key_file import StoredKey
from shared.ipc.shard_refusal import broker_state_text, state_text
from shared.runtime.clock import Clock

JSON_TYPE: Final = "application/json"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

ROUTE_OPERATIONS: Final = frozenset({"list_routers", "router_state", "delete_router"})
METRIC_FIELDS: Final = ("cursors", "cursor_count", "oldest_ready_seconds", "ready", "in_flight")
METRICS_NAMES: Final = 100
"""The default number of topics, and of routes, that have their own series."""

ENDPOINT_LIST: Final = [f"{one.method} {one.pattern}" for one in ENDPOINTS if one.operation != "about"]
DOCS: Final = "docs/index.md"

ControlAnswer = tuple[int, dict[str, object] | str, bytes]
"""Status; object (JSON) or text (`METRICS_TYPE`); more header fields, each ending in CRLF."""


class Workers(Protocol):
    """The workers, as `router/supervision/process_pool.py` presents them."""

    @property
    def board(self) -> Board: ...
    @property
    def is_draining(self) -> bool: ...
    def is_serving(self, shard: int) -> bool: ...
    def was_ready(self, shard: int) -> bool: ...
    def restart_count(self, shard: int) -> int: ...


class Brokers(Protocol):
    """The brokers, as `router/supervision/worker_pools.py` presents them."""

    def was_ready(self, number: int) -> bool: ...
    def restart_count(self, number: int) -> int: ...


class RouteEndpoints(Protocol):
    """The routes, as `router/control/route_answers.py` presents them."""

    async def answer(
        self, operation: str, name: str, query: str, prefixes: Sequence[str]
    ) -> dict[str, object] | Refusal: ...
    async def page(
        self, query: ListQuery, prefixes: Sequence[str], source: str = "", dest: str = ""
    ) -> ListPage | Refusal: ...


class ControlEndpoints:
    def __init__(
        self,
        workers: Workers,
        clock: Clock,
        version: str,
        list_shard: ListShard,
        routes: RouteEndpoints,
        backup_points: BackupPoints,
        connection_counts: Callable[[], ConnectionCounts] = ConnectionCounts,
        store_url: str = "",
        shards: Callable[[], dict[str, object]] = dict,
        brokers: Brokers | None = None,
        named_keys: Callable[[], Sequence[StoredKey]] = tuple,
    ) -> None:
        """Answer for the workers; `brokers` is given on a node that has some."""
        self._shards = shards
        self._brokers = brokers
        self._named_keys = named_keys
        self._workers = workers
        self._clock = clock
        self._version = version
        self._list_shard = list_shard
        self._routes = routes
        self._backup_points = backup_points
        self._connection_counts = connection_counts
        self._store_url = store_url
        self._started = clock.monotonic()
        self._was_ready = False

    async def answer(
        self, operation: str, name: str, query: str, accept: str, prefixes: Sequence[str] = ()
    ) -> ControlAnswer:
        """Answer a control request.

        `name` is the name in the path. `prefixes` are the name prefixes that the key of the request allows;
        an empty sequence allows all names.
        """
        started = self._clock.monotonic()
        result: dict[str, object] | str | Refusal
        if operation == "health":
            result = {"status": "ok", "version": self._version, "uptime_ms": self._uptime_ms()}
        elif operation == "about":
            result = {"server": "topicsd", "version": self._version, "docs": DOCS, "endpoints": ENDPOINT_LIST}
        elif operation == "ready":
            result = self._answer_ready(query)
        elif operation == "metrics":
            result = await self._metrics(query, accept, prefixes)
        elif operation == "store":
            result = store_answer(self._store_url, self._all_slots(), self._uptime_ms())
        elif operation == "shards":
            result = self._shards()
        elif operation == "list_topics":
            result = await self._list(query, prefixes)
        elif operation in ROUTE_OPERATIONS:
            result = await self._routes.answer(operation, name, query, prefixes)
        elif operation == "create_backup_point":
            result = await self._take_backup_point(prefixes)
        else:
            result = Refusal(NOT_IMPLEMENTED, f"{operation} is not implemented")
        return self.complete(result, started)

    def complete(
        self, result: dict[str, object] | str | Refusal, started: float | None = None
    ) -> ControlAnswer:
        """Return the answer for a result, of a request that was read at `started` or just now (C2)."""
        if isinstance(result, Refusal):
            return refusal_answer(result)
        if isinstance(result, dict):
            now = self._clock.monotonic() if started is None else started
            result["performance"] = performance_since(now, self._clock)
        return 200, result, b""

    async def _take_backup_point(self, prefixes: Sequence[str]) -> dict[str, object] | Refusal:
        if prefixes:
            return Refusal(FORBIDDEN, "a backup point is of all topics, and this key allows only some names")
        return await self._backup_points.take()

    def _answer_ready(self, query: str) -> dict[str, object] | Refusal:
        allow_degraded = query_boolean(query, "allow_degraded", False)
        return allow_degraded if isinstance(allow_degraded, Refusal) else self.ready(allow_degraded)

    def ready(self, allow_degraded: bool = False) -> dict[str, object] | Refusal:
        """Return the state of the whole server, for a probe."""
        board = self._workers.board
        shards = [self._shard_state(shard) for shard in range(len(board))]
        serving = [bool(one["serving"]) for one in shards]
        if self._workers.is_draining:
            return shutting_down()
        settled = [
            self._workers.was_ready(shard) or board.slot(shard).state is WorkerState.REFUSED
            for shard in range(len(board))
        ]
        has_served = any(serving) if serving else self._has_serving_broker()
        is_settled = all(settled) and not self._has_starting_broker()
        self._was_ready = self._was_ready or (is_settled and has_served)
        brokers = [self._broker_state(number) for number in range(board.broker_count)]
        is_waiting = self._has_starting_broker() or not (serving or any(one["serving"] for one in brokers))
        is_ready = all(serving) and not is_waiting
        if not (is_ready or (allow_degraded and self._was_ready)):
            detail: dict[str, object] = {"replay_progress": self.replay_progress(), "shards": shards}
            if brokers:
                detail["brokers"] = brokers
            # A shard that refuses to start is not restarted.
            can_become_ready = not any(self._has_refused_to_start(shard) for shard in range(len(board)))
            reason = _not_ready(board, serving) or _brokers_not_ready(board, brokers)
            return not_ready(reason, detail, is_retry_useful=can_become_ready)
        answer: dict[str, object] = {
            "status": "ready",
            "wal_replay_complete": all(slot.state is WorkerState.READY for slot in board),
            "topics": sum(slot.topics for slot in board),
            "shards": shards,
        }
        if brokers:
            answer["brokers"] = brokers
        if not is_ready:
            reason = _not_ready(board, serving) or _brokers_not_ready(board, brokers)
            answer.update(status="degraded", reason=reason)
        problems = [problems_of(list(board), board.brokers), _brokers_not_ready(board, brokers)]
        if any(problems):
            answer["degraded"] = "; ".join(filter(None, problems))
        return answer

    def replay_progress(self) -> float:
        """Return the replayed share of all logs, from 0 to 1."""
        board = self._workers.board
        return round(sum(progress(slot) for slot in board) / len(board), 4) if len(board) else 1.0

    def _shard_state(self, shard: int) -> dict[str, object]:
        slot = self._workers.board.slot(shard)
        state: dict[str, object] = {
            "shard": shard,
            "state": slot.state.name.lower(),
            "serving": self._workers.is_serving(shard),
            "topics": slot.topics,
            "replay_progress": progress(slot),
        }
        if not state["serving"] and (reason := _public_reason(slot)):
            state["reason"] = reason
        return state

    def _broker_state(self, number: int) -> dict[str, object]:
        board = self._workers.board
        owner = board.broker_number(number)
        slot = board.slot(owner)
        state: dict[str, object] = {
            "broker": number,
            "state": slot.state.name.lower(),
            "serving": self._workers.is_serving(owner),
        }
        if not state["serving"] and (reason := _public_reason(slot)):
            state["reason"] = reason
        return state

    def _has_serving_broker(self) -> bool:
        return any(map(self._workers.is_serving, self._workers.board.broker_numbers))

    def _has_starting_broker(self) -> bool:
        """Return whether a broker starts for the first time, and nothing delays it."""
        brokers = self._brokers
        return brokers is not None and any(
            slot.state is WorkerState.STARTING and not slot.reason and not brokers.was_ready(number)
            for number, slot in enumerate(self._workers.board.brokers)
        )

    def _all_slots(self) -> list[Slot]:
        """Return the slots of the shards and of the brokers."""
        return [slot for _, slot in self._workers.board.owners()]

    def _has_refused_to_start(self, shard: int) -> bool:
        return self._workers.board.slot(shard).state is WorkerState.REFUSED

    async def _metrics(
        self, query: str, accept: str, prefixes: Sequence[str]
    ) -> dict[str, object] | str | Refusal:
        topic_query = parse_metrics_query(query, "topics")
        route_query = parse_metrics_query(query, "routers")
        if isinstance(topic_query, Refusal):
            return topic_query
        if isinstance(route_query, Refusal):
            return route_query
        topics: list[dict[str, Any]] = []
        has_more_topics = False
        if topic_query.page_size:
            page = await list_page(self._list_serving, len(self._workers.board), topic_query, prefixes)
            assert not isinstance(page, Refusal), "a partial list is never refused"
            topics, has_more_topics = page.entries, page.next_cursor is not None
        routers: list[dict[str, Any]] = []
        has_more_routers = False
        if route_query.page_size:
            routers_page = await self._routes.page(route_query, prefixes)
            assert not isinstance(routers_page, Refusal), "a partial list is never refused"
            routers, has_more_routers = routers_page.entries, routers_page.next_cursor is not None
        workers = self._workers
        board = workers.board
        ready = not isinstance(self.ready(), Refusal)
        counts = self._connection_counts()
        samples = [
            ServerSample("topics_ready", "gauge", "1 while the server is ready.", int(ready)),
            ServerSample(
                "topics_draining", "gauge", "1 while the server shuts down.", int(workers.is_draining)
            ),
            ServerSample("topics_uptime_ms", "gauge", "Uptime of the supervisor.", self._uptime_ms()),
            ServerSample(
                "topics_topic_metrics_truncated",
                "gauge",
                "1 when not every topic has its own series.",
                int(has_more_topics),
            ),
            ServerSample(
                "topics_router_metrics_truncated",
                "gauge",
                "1 when not every route has its own series.",
                int(has_more_routers),
            ),
            ServerSample(
                "topics_cursor_metrics_truncated",
                "gauge",
                "1 when not every cursor of these topics has its own series.",
                int(any(one.get("cursor_count", 0) > len(one.get("cursors", ())) for one in topics)),
            ),
            ServerSample(
                "topics_backup_points_total", "counter", "Backup points taken.", self._backup_points.count
            ),
            ServerSample(
                "topics_backup_point_pause_ms",
                "gauge",
                "The pause of writes for the last backup point.",
                self._backup_points.last_pause_ms,
            ),
            *(ServerSample(one.name, one.kind, one.help, one.read(counts)) for one in CONNECTION_METRICS),
            *_reshard_samples(self._shards()),
            *_key_samples(self._named_keys(), self._clock.now_ms()),
        ]
        counted = [workers.restart_count(shard) for shard in range(len(board))]
        restarts = ShardSample("topics_worker_restarts_total", "counter", "Restarts of the worker.", counted)
        values = MetricValues(
            list(board), samples, [restarts], topics, routers, board.brokers, self._broker_samples()
        )
        return (as_json if wants_json(accept) else as_prometheus)(values)

    def _broker_samples(self) -> list[ShardSample]:
        board, brokers = self._workers.board, self._brokers
        if brokers is None:
            return []
        serving = [int(self._workers.is_serving(owner)) for owner in board.broker_numbers]
        restarts = [brokers.restart_count(number) for number in range(board.broker_count)]
        return [
            ShardSample("topics_broker_ready", "gauge", "1 while the broker serves.", serving),
            ShardSample("topics_broker_restarts_total", "counter", "Restarts of the broker.", restarts),
        ]

    async def _list(self, query: str, prefixes: Sequence[str]) -> dict[str, object] | Refusal:
        list_query = parse_list_query(query)
        if isinstance(list_query, Refusal):
            return list_query
        count = len(self._workers.board)
        page = await list_page(
            self._list_serving,
            count,
            list_query,
            prefixes,
            has_refused_to_start=self._has_refused_to_start,
            broker=self._listing_broker(),
        )
        if isinstance(page, Refusal):
            return page
        # The list omits the fields of cursors and jobs, which are for metrics only.
        topics = [{key: one[key] for key in one if key not in METRIC_FIELDS} for one in page.entries]
        answer: dict[str, object] = {"topics": topics}
        if page.next_cursor is not None:
            answer["next_cursor"] = page.next_cursor
        if page.missing_shards:
            answer["missing_shards"] = page.missing_shards
        if page.is_shared_missing:
            answer["missing_shared"] = True
        return {**answer, **clamped_page_size(query, list_query)}

    def _listing_broker(self) -> int | None:
        """Return the owner number of a broker, of one that serves if there is one; None without brokers."""
        numbers = self._workers.board.broker_numbers
        return next(filter(self._workers.is_serving, numbers), numbers[0] if numbers else None)

    async def _list_serving(self, shard: int, prefix: str, after: str, limit: int) -> TopicList:
        """List topics of a shard, without waiting for a shard that is known to be down."""
        if not self._workers.is_serving(shard):
            return None
        return await self._list_shard(shard, prefix, after, limit)

    def _uptime_ms(self) -> int:
        return int((self._clock.monotonic() - self._started) * 1000)


def performance_since(started: float, clock: Clock) -> dict[str, float]:
    """Return the member `performance` of the response to a request that was read at `started`."""
    return {"server_total_ms": round((clock.monotonic() - started) * 1000, 3)}


def refusal_answer(refusal: Refusal) -> ControlAnswer:
    return STATUS[refusal.code], refusal_body(refusal), refusal_fields(refusal)


def parse_list_query(query: str, is_name: Callable[[str], bool] = is_topic_name) -> ListQuery | Refusal:
    """Parse the query of a list; `is_name` checks the name in a cursor."""
    page_size = query_number(query, "page_size", is_clamped=True)
    if isinstance(page_size, Refusal):
        return page_size
    is_partial = query_boolean(query, "partial", False)
    if isinstance(is_partial, Refusal):
        return is_partial
    after = name_of_cursor(cursor, is_name) if (cursor := query_text(query, "cursor")) else ""
    if after is None:
        return bad_cursor()
    used = PAGE_SIZE if page_size is None else min(max(page_size, 1), PAGE_SIZE_MAX)
    return ListQuery(query_text(query, "prefix") or "", after, used, is_partial)


def clamped_page_size(query: str, list_query: ListQuery) -> dict[str, object]:
    """Return the member of a list that names a page size other than the requested one."""
    requested = query_number(query, "page_size", is_clamped=True)
    if requested is None or requested == list_query.page_size:
        return {}
    return {"clamped": {"page_size": list_query.page_size}}


def parse_metrics_query(query: str, count_field: str) -> ListQuery | Refusal:
    """Parse which `topics`, or `routers`, have series: the first in name order, with `prefix`.

    Not the largest ones: finding them costs work for every topic, and the series of a topic would appear and
    disappear as other topics grow.
    """
    count = query_number(query, count_field, is_clamped=True)
    if isinstance(count, Refusal):
        return count
    used = METRICS_NAMES if count is None else min(max(count, 0), PAGE_SIZE_MAX)
    return ListQuery(query_text(query, "prefix") or "", "", used, is_partial=True)


def _key_samples(keys: Sequence[StoredKey], now_ms: int) -> list[ServerSample]:
    expired = sum(key.is_expired(now_ms) for key in keys)
    return [
        ServerSample("topics_named_keys", "gauge", "Named keys, also expired ones.", len(keys)),
        ServerSample("topics_named_keys_expired", "gauge", "Named keys that have expired.", expired),
    ]


def _reshard_samples(shards: dict[str, Any]) -> list[ServerSample]:
    return [
        ServerSample("topics_shards", "gauge", "Shards of the server.", shards.get("count", 0)),
        ServerSample(
            "topics_reshard_topics_left",
            "gauge",
            "Topics that a reshard has still to move.",
            shards.get("topics_left", 0),
        ),
        ServerSample(
            "topics_reshard_topics_moved_total",
            "counter",
            "Topics that a reshard has moved.",
            shards.get("topics_moved", 0),
        ),
    ]


def wants_json(accept: str) -> bool:
    """Return whether an Accept header asks for JSON.

    >>> wants_json("application/json; q=0.9, text/html"), wants_json("*/*"), wants_json("")
    (True, False, False)
    """
    return any(one.partition(";")[0].strip().lower() == JSON_TYPE for one in accept.split(","))


def _not_ready(board: Board, serving: Sequence[bool]) -> str:
    texts = []
    for shard, is_serving in enumerate(serving):
        if not is_serving:
            slot = board.slot(shard)
            # The text of these states has their reason.
            reason = "" if slot.state in _PUBLIC_REASONS else _public_reason(slot)
            texts.append(f"shard {shard} {state_text(slot.state)}" + (f" ({reason})" if reason else ""))
    return "; ".join(texts)


def _brokers_not_ready(board: Board, brokers: Sequence[dict[str, object]]) -> str:
    """Return which brokers do not serve, and what that means; empty when all serve."""
    texts = []
    for number, state in enumerate(brokers):
        if not state["serving"]:
            slot = board.slot(board.broker_number(number))
            reason = f" ({state['reason']})" if state.get("reason") else ""
            texts.append(f"broker {number} {broker_state_text(slot.state)}{reason}")
    return f"{'; '.join(texts)}: shared topics wait" if texts else ""


_PUBLIC_REASONS: Final = {
    WorkerState.REFUSED: "its data is damaged or cannot be used; see the server's log",
    WorkerState.FAILED: "a disk failure; see the server's log",
}


def _public_reason(slot: Slot) -> str:
    """Return how the last process of the shard ended, or why the next one does not start.

    The rest of the reason is only logged, since it may name paths.
    """
    return _PUBLIC_REASONS.get(slot.state) or slot.reason.partition(": ")[0]
