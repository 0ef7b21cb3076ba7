"""A catalog that is away, loses requests, or loses answers, when the test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from topicsd.catalog.catalog import Catalog, CatalogUnavailable
from topicsd.engine.ownership.catalog_work import Node

VERBS = (
    "create",
    "create_all",
    "own",
    "raise_ceiling",
    "publish_extents",
    "extents_from",
    "seal",
    "adopt",
    "forget",
    "list",
)


class FaultyCatalog:
    """The verbs of `catalog`, which several nodes may share, with faults of this node's connection.

    Promises: a lost request changes nothing; after a lost answer the change is made.
    """

    url = "fake://catalog"

    def __init__(self, catalog: Catalog, random: Random | None = None, loss: float = 0.0) -> None:
        self._catalog = catalog
        self._random = random or Random(0)
        self.loss = loss
        """The part of the requests that fail; of half of these only the answer is lost."""
        self.is_away = False
        self.lost_answers = 0
        """The number of next requests whose answers are lost."""
        self.calls: Counter[str] = Counter()
        self.before_call: Callable[[str], None] | None = None

    def node(self, node_id: str) -> Node:
        return Node(node_id, lambda wait: self, lambda topic_id: True)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in VERBS:
            raise AttributeError(verb)

        def call(*arguments: Any, **options: Any) -> Any:
            if self.before_call is not None:
                self.before_call(verb)
            self.calls[verb] += 1
            is_failing = self._random.random() < self.loss
            if self.is_away or (is_failing and self._random.random() < 0.5):
                raise CatalogUnavailable(f"{verb}: lost request")
            answer = getattr(self._catalog, verb)(*arguments, **options)
            if is_failing or self.lost_answers:
                self.lost_answers = max(0, self.lost_answers - 1)
                raise CatalogUnavailable(f"{verb}: lost answer")
            return answer

        return call

    def close(self) -> None:
        pass
