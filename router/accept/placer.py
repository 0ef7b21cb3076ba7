"""Placement of a connection by the request line of its first request.

A data endpoint is placed at the shard that owns its topic or its watch session, an endpoint of shared topics
at any broker, a control endpoint at the supervisor. A node without shards has all data at its brokers. An
HTTP/2 connection may carry any request: it is placed at any worker and stays there. A request that is neither
is refused by any worker, like every other refused request on its connections, so that a refusal is the same
whichever process sends it. The results are cached by the bytes of the request line, because clients repeat
them, until the placement of topics changes.
"""

from __future__ import annotations

from typing import Final

from shared.contract.endpoints import TOPIC, WATCH_ID, Match, resolve
from shared.contract.errors import INVALID_REQUEST, URI_TOO_LONG, Refusal, not_ready
from shared.contract.names import refuse_topic_name
from shared.contract.watch_id import WatchIds
from shared.http.head import LINE_BYTES_MAX, parse_line
from shared.ipc.shared_placement import SharedPlacement
from shared.text.message import size_text

ANY_WORKER: Final = -1
CONTROL: Final = -2
ANY_BROKER: Final = -3

NONE_READY: Final = not_ready("no shard is ready")

CACHED_MAX: Final = 8192
CACHED_BYTES_MAX: Final = 1024


class Placer:
    def __init__(self, ids: WatchIds, placement: SharedPlacement) -> None:
        self._ids = ids
        self._placement = placement
        self._placements: dict[bytes, int] = {}
        placement.call_on_change(self._placements.clear)

    def place(self, data: bytes) -> int | None:
        """Return an owner number, `ANY_WORKER`, `ANY_BROKER` or `CONTROL`; None when more input is needed.

        `data` begins with the request line; the bytes after it do not matter. A line ends with CRLF. A line
        that ends with LF alone is malformed and is placed at any worker, since a CR would never arrive.
        """
        end = data.find(b"\n", 0, LINE_BYTES_MAX + 2)
        if end < 0:
            return None if len(data) < LINE_BYTES_MAX + 2 else ANY_WORKER
        line = data[: end - 1] if data[end - 1 : end] == b"\r" else None
        if line is None:
            return ANY_WORKER
        self._placement.refresh()
        placement = self._placements.get(line)
        return self._place_and_cache(line) if placement is None else placement

    def _place_and_cache(self, line: bytes) -> int:
        match = _match(line)
        placement = ANY_WORKER if isinstance(match, Refusal) else self._place(match)
        # A token is a key, in any spelling, and must not be cached.
        has_token = b"token" in line or (isinstance(match, Match) and match.endpoint.takes_token)
        if len(line) <= CACHED_BYTES_MAX and not has_token:
            if len(self._placements) >= CACHED_MAX:
                self._placements.clear()
            self._placements[line] = placement
        return placement

    def _place(self, match: Match) -> int:
        endpoint, placement = match.endpoint, self._placement
        if not endpoint.is_data:
            return CONTROL
        if endpoint.is_broker:
            # On a node without brokers any worker says so.
            return ANY_BROKER if placement.broker_numbers else ANY_WORKER
        if endpoint.variable == WATCH_ID:
            wid = self._ids.parse(match.name)
            # A session of a retired shard has ended, as any worker answers.
            return wid.shard if wid is not None and placement.is_owner(wid.shard) else ANY_WORKER
        if endpoint.variable != TOPIC or refuse_topic_name(match.name) is not None:
            return ANY_WORKER
        return placement.owner_of(match.name) if placement.shard_count else ANY_BROKER


def refusal_of(data: bytes, none_ready: Refusal = NONE_READY) -> Refusal:
    """Return the refusal of a request that any process could answer, for when none is ready."""
    end = data.find(b"\n")
    if end < 0:
        return Refusal(URI_TOO_LONG, f"the request line must be at most {size_text(LINE_BYTES_MAX)}")
    if data[end - 1 : end] != b"\r":
        return Refusal(INVALID_REQUEST, "the request line must end with CRLF")
    match = _match(data[: end - 1])
    if isinstance(match, Refusal):
        return match
    refusal = refuse_topic_name(match.name) if match.endpoint.variable == TOPIC else None
    return refusal or none_ready


def _match(line: bytes) -> Match | Refusal:
    parsed = parse_line(line)
    if isinstance(parsed, Refusal):
        return parsed
    return resolve("GET" if parsed.method == "HEAD" else parsed.method, parsed.path)
