"""The membership of a node in its cluster: heartbeats in the catalog, by the first broker of the node.

N1  A node is alive for EXPIRE_SECONDS after its last heartbeat, by the clock of the catalog, so three may be
    lost. A heartbeat that fails is not repeated: the next one comes soon.
N2  A node leaves when its first broker drains. One that is killed leaves when its last heartbeat expires, or
    beats again as the same node when it is back before that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shared.runtime.disk_thread import Loop
from topicsd.broker.steps import Pool
from topicsd.catalog.shared.shared_catalog import BrokerNode, SharedCatalog
from topicsd.service.cluster.about import BrokerIdentity

BEAT_SECONDS: Final = 2.0
EXPIRE_SECONDS: Final = 10.0

logger = logging.getLogger("topicsd.broker")


class Membership:
    """The heartbeats of one node; `report` returns its numbers as JSON."""

    def __init__(
        self,
        identity: BrokerIdentity,
        catalog: SharedCatalog,
        pool: Pool,
        loop: Loop,
        report: Callable[[], bytes],
    ) -> None:
        self._identity = identity
        self._catalog = catalog
        self._pool = pool
        self._loop = loop
        self._report = report
        self._timer: Any = None
        self._is_beating = False
        self._is_silent = False
        """Whether the last heartbeat failed, which was logged."""
        self._on_left: Callable[[], object] | None = None

    def start(self) -> None:
        """Join the cluster, and stay in it."""
        self._timer = None
        self._is_beating = True
        identity = self._identity
        node = BrokerNode(
            identity.node,
            identity.address,
            identity.weight,
            identity.roles,
            identity.started_ms,
            self._report(),
        )
        beat = partial(self._catalog.heartbeat, node, int(EXPIRE_SECONDS * 1000))
        self._pool.call(beat)(self._on_beat)

    def leave(self, on_left: Callable[[], object]) -> None:
        """Leave the cluster, after a heartbeat that is on its way; then call `on_left`."""
        assert self._on_left is None
        self._on_left = on_left
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_beating:
            self._leave()

    def _on_beat(self, outcome: OSError | None) -> None:
        self._is_beating = False
        if isinstance(outcome, OSError) and not self._is_silent:
            logger.warning("cluster: heartbeat failed, it is tried again: %s", outcome)
        elif outcome is None and self._is_silent:
            logger.info("cluster: heartbeats reach the catalog again")
        self._is_silent = isinstance(outcome, OSError)
        if self._on_left is None:
            self._timer = self._loop.call_later(BEAT_SECONDS, self.start)
        else:
            self._leave()

    def _leave(self) -> None:
        self._pool.call(partial(self._catalog.leave, self._identity.node))(self._on_leave)

    def _on_leave(self, outcome: OSError | None) -> None:
        if isinstance(outcome, OSError):
            logger.warning("cluster: not left, the last heartbeat expires: %s", outcome)
        assert self._on_left is not None
        self._on_left()
