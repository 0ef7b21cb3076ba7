"""The endpoints that a broker answers about itself and its cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shared.contract.errors import FORBIDDEN, NOT_IMPLEMENTED, Refusal
from topicsd.broker.refusals import no_catalog
from topicsd.broker.steps import Pool
from topicsd.catalog.shared.shared_catalog import SharedCatalog
from topicsd.service.call import CONTENT_TYPE, Call
from topicsd.service.cluster.about import BrokerSources
from topicsd.service.cluster.broker_metrics import prometheus, snapshot
from topicsd.service.cluster.cluster_answer import read_cluster
from topicsd.service.render import encode

BYTES_TYPE: Final = CONTENT_TYPE + b"application/octet-stream\r\n"
NO_HOMES: Final = Refusal(
    NOT_IMPLEMENTED,
    "the broker takes no commits of others: that needs a key-value catalog and TOPICS_HOME_COMMITS",
)
NOT_SIGNED: Final = Refusal(FORBIDDEN, "the body must have the signature of a node of the cluster")
PROMETHEUS_TYPE: Final = CONTENT_TYPE + b"text/plain; version=0.0.4; charset=utf-8\r\n"


class BrokerEndpoints:
    """The handlers, by operation; `catalog` is asked on the threads of `pool`."""

    def __init__(self, sources: BrokerSources, catalog: SharedCatalog, pool: Pool) -> None:
        self._sources = sources
        self._catalog = catalog
        self._pool = pool
        self.table: dict[str, Callable[[Call], None]] = {
            "broker_health": self._health,
            "broker_metrics": self._metrics,
            "broker_prometheus": self._prometheus,
            "cluster": self._cluster,
            "home_commit": self._home_commit,
        }

    def _health(self, call: Call) -> None:
        identity = self._sources.identity
        call.send(
            encode(
                {
                    "status": "ok",
                    "broker_id": identity.broker_id,
                    "host": identity.host,
                    "port": identity.port,
                    "started_at_ms": identity.started_ms,
                }
            )
        )

    def _metrics(self, call: Call) -> None:
        body = encode(snapshot(self._sources))
        call.send_parts([body], len(body))

    def _prometheus(self, call: Call) -> None:
        body = prometheus(self._sources).encode()
        call.send_parts([body], len(body), 200, PROMETHEUS_TYPE)

    def _home_commit(self, call: Call) -> None:
        """Commit what the broker of another node has put, as the home of its topics."""
        homes = self._sources.broker.committer.homes
        if homes is None:
            call.refuse(NO_HOMES)
            return
        body = call.body if call.shared_body is None else bytes(call.shared_body.mapped())
        homes.home.take(body, partial(self._on_home_answer, call))

    def _on_home_answer(self, call: Call, answer: bytes | None) -> None:
        if answer is None:
            call.refuse(NOT_SIGNED)
        else:
            call.send_parts([answer], len(answer), 200, BYTES_TYPE)

    def _cluster(self, call: Call) -> None:
        self._pool.call(partial(read_cluster, self._catalog))(partial(self._on_cluster, call))

    def _on_cluster(self, call: Call, outcome: dict[str, object] | OSError) -> None:
        if isinstance(outcome, OSError):
            refusal: Refusal = no_catalog(outcome)
            call.refuse(refusal)
            return
        took_ms = round((self._sources.clock.monotonic() - call.started) * 1000, 3)
        outcome["performance"] = {"server_total_ms": took_ms}
        body = encode(outcome)
        call.send_parts([body], len(body))
