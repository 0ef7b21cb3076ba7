"""Weighted rendezvous hashing: which nodes are the home of a topic, computed alike by every process.

Each node has a score for each key, and the highest scores win. With the hash `h` of key and node as a number
in (0, 1), the score is ``-weight / ln(h)``: a node then wins a share of the keys that is its share of the
weights. The score of a node depends on no other node, so

R1  a node that joins takes keys, and no key moves between the others;
R2  the keys of a node that leaves go to the others in proportion, and no other key moves;
R3  a node whose weight grows only takes keys, and one whose weight falls only gives keys away.

The hash is xxh3_64 of ``key NUL node``, which depends on no seed of a process. A node of weight 0 gets no
key.

    >>> nodes = {"a": 1.0, "b": 1.0, "c": 2.0}
    >>> [home_of(key, nodes) for key in ("orders", "orders:1", "orders:2", "orders:3")]
    ['b', 'c', 'a', 'a']
    >>> ranked("orders", nodes)
    ['b', 'a', 'c']
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import xxhash


def home_of(key: str, nodes: Mapping[str, float]) -> str | None:
    """Return the node with the highest score; None when no node has a weight. `nodes` are weights by name."""
    best = max(
        ((_score(key, name, weight), name) for name, weight in nodes.items() if weight > 0), default=None
    )
    return None if best is None else best[1]


def ranked(key: str, nodes: Mapping[str, float]) -> list[str]:
    """Return the nodes with a weight, best first: each one replaces those before it that are silent."""
    scores = [(_score(key, name, weight), name) for name, weight in nodes.items() if weight > 0]
    return [name for _, name in sorted(scores, reverse=True)]


def _score(key: str, node: str, weight: float) -> float:
    number = xxhash.xxh3_64_intdigest(f"{key}\0{node}".encode())
    # 53 bits, and never 0 or 1, for which there is no logarithm or no quotient.
    share = ((number >> 11) + 0.5) / (1 << 53)
    return -weight / math.log(share)
