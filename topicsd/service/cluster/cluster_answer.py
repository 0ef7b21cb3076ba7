"""The answer of `GET /v0/cluster`: the nodes with brokers that are alive, and what each of them does.

The home of a topic is the node that rendezvous hashing picks for it (`topicsd/broker/rendezvous.py`). It
is the first of the owner set of the topic, which clients may choose; any node may take its writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from topicsd.broker.rendezvous import home_of
from topicsd.catalog.shared.shared_catalog import BrokerNode, SharedCatalog, SharedTopic

TOPICS_COUNTED: Final = 1000
"""Topics whose homes are counted: the first ones by name."""


def read_cluster(catalog: SharedCatalog) -> dict[str, object]:
    """Return the nodes of the catalog; blocks."""
    return cluster_answer(catalog.nodes(), catalog.list("", "", TOPICS_COUNTED))


def cluster_answer(nodes: Sequence[BrokerNode], topics: Sequence[SharedTopic]) -> dict[str, object]:
    """Return the nodes, the share of the homes that each is to have, and its homes of these topics."""
    weights = {node.name: node.weight for node in nodes}
    total = sum(weights.values())
    homes = Counter(home_of(topic.name, weights) for topic in topics)
    return {
        "nodes": [
            {
                "node": node.name,
                "address": node.address,
                "weight": node.weight,
                "share": round(node.weight / total, 4) if total else 0.0,
                "homes": homes[node.name],
                "roles": list(node.roles),
                "started_at_ms": node.started_ms,
                "age_ms": node.age_ms,
                "report": _decoded(node.report),
            }
            for node in nodes
        ],
        "topics_counted": len(topics),
    }


def _decoded(report: bytes) -> dict[str, Any]:
    """Return the report of a node, which may be of another release."""
    try:
        return msgspec.json.decode(report, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
