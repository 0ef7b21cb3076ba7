"""An operator with a console: moves topics between nodes, and takes over the topics of lost nodes.

A move is a seal on the owner and an adopt on another node, each repeated until it is answered. The operator
reads the catalog directly, as a person with a console does.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from shared.contract.errors import TOPIC_NOT_EMPTY
from tests.harness.cluster.answers import Adopt, Answer, ClusterNode, Done, Refused, Seal
from tests.harness.cluster.histories.directory import Attempt, Directory
from tests.harness.cluster.shared_catalog import SharedCatalog
from tests.harness.cluster.virtual_time import World

PAUSE_MS: Final = 12_000


class TopicMover:
    def __init__(
        self, world: World, directory: Directory, catalog: SharedCatalog, takeover_share: float
    ) -> None:
        self._world = world
        self._directory = directory
        self._catalog = catalog
        self._takeover_share = takeover_share
        """How often a topic is taken over from an owner that may be alive."""
        self.is_ending = False
        self.done: Counter[str] = Counter()

    def start(self) -> None:
        self._world.after(self._world.rng.random() * PAUSE_MS, self._next)

    def _next(self) -> None:
        self._world.after(self._world.rng.random() * PAUSE_MS, self._next)
        rows = self._catalog.rows()
        if not rows:
            return
        rng = self._world.rng
        row = rng.choice(rows)
        owner = self._directory.nodes[row.owner]
        if row.state == "sealed":
            self._adopt(row.name, rng.choice(self._healthy()), accept_loss=False)
        elif owner.is_lost:
            self._adopt(row.name, rng.choice(self._healthy()), accept_loss=True)
        elif self.is_ending:
            # An adopt that was interrupted is finished by repeating it.
            self._adopt(row.name, owner, accept_loss=True)
        elif rng.random() < self._takeover_share:
            others = [node for node in self._healthy() if node is not owner]
            if others:
                self._adopt(row.name, rng.choice(others), accept_loss=True)
        else:
            self._seal(row.name, owner)

    def _healthy(self) -> list[ClusterNode]:
        return [node for node in self._directory.nodes.values() if not node.is_lost]

    def _seal(self, topic: str, node: ClusterNode) -> None:
        def answered(answer: Answer) -> None:
            self.done["seal" if isinstance(answer, Done) else "seal failed"] += 1

        Attempt(self._world, lambda reply: node.request(topic, Seal(), reply)).run(answered)

    def _adopt(self, topic: str, node: ClusterNode, accept_loss: bool) -> None:
        kind = "adopt with loss" if accept_loss else "adopt"

        def answered(answer: Answer) -> None:
            self.done[kind if isinstance(answer, Done) else f"{kind} failed"] += 1
            if isinstance(answer, Done):
                self._directory.owners[topic] = node.name
            elif isinstance(answer, Refused) and answer.code == TOPIC_NOT_EMPTY:
                self._adopt_over_copy(topic, node)

        Attempt(self._world, lambda reply: node.request(topic, Adopt(accept_loss), reply)).run(answered)

    def _adopt_over_copy(self, topic: str, node: ClusterNode) -> None:
        """Adopt a sealed topic on a node that has records of an earlier stay that were not exported."""
        row = self._catalog.row(topic)
        if row is not None and row.state == "sealed":
            self._adopt(topic, node, accept_loss=True)
