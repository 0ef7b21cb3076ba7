"""Where clients believe that topics are, and one try of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tests.harness.cluster.answers import IN_DOUBT, Answer, ClaimJobs, ClusterNode, Refused
from tests.harness.cluster.virtual_time import World

TIMEOUT_MS: Final = 15_000


class Directory:
    """Where clients believe that topics are."""

    def __init__(self, world: World, nodes: Sequence[ClusterNode]) -> None:
        self._world = world
        self.nodes = {node.name: node for node in nodes}
        self.owners: dict[str, str] = {}
        self.supported = nodes[0].supported
        self._names = list(self.nodes)

    @property
    def has_producers(self) -> bool:
        """Whether the nodes know more than plain topics: producers, tags, cursors, queues."""
        return ClaimJobs in self.supported

    def node_of(self, topic: str) -> ClusterNode:
        """Return the node that a client asks: any one until one is known to have the topic."""
        owner = self.owners.get(topic)
        return self.nodes[self._world.rng.choice(self._names) if owner is None else owner]

    def follow(self, topic: str, refused: Refused) -> None:
        if refused.owner:
            self.owners[topic] = refused.owner
        elif self._world.rng.random() < 0.3:
            # Perhaps another node has it by now.
            self.owners[topic] = self._world.rng.choice(self._names)


class Attempt:
    """One request on its way; its answer counts once, and not after its timeout."""

    def __init__(self, world: World, send: Callable[[Callable[[Answer], object]], object]) -> None:
        self._is_over = False
        self._world = world
        self._send = send

    def run(self, done: Callable[[Answer], object]) -> None:
        def answered(answer: Answer) -> None:
            self._world.after(self._world.rng.random() * 5, once, answer)

        def once(answer: Answer) -> None:
            if not self._is_over:
                self._is_over = True
                done(answer)

        self._world.after(TIMEOUT_MS, once, IN_DOUBT)
        self._send(answered)
