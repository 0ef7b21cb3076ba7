"""Requests of nodes to the services that they share, and everything that can happen to a request.

done            the answer arrives
refused         the service is away or asks for a pause: nothing happened, and the node knows it soon
lost request    nothing happened; the node waits for its timeout
lost answer     the request was done; the node waits for its timeout
late            the node waits for its timeout; then, up to LATE_MS later, the request is done

A request that has left a node reaches its service also when the node is stopped or killed. A partition loses
requests and answers of one node. Each request is noted when it is done, and when its answer arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tests.harness.cluster.fibers import current_fiber
from tests.harness.cluster.virtual_time import Process, World
from tests.harness.machine.faults import MachineGoneError

T = TypeVar("T")

LATE_MS: Final = 90_000
TIMEOUT_MS: Final = 10_000


class Service:
    """What one shared server does to requests: how often each fault happens, and how long requests take."""

    def __init__(self, name: str, unavailable: type[OSError]) -> None:
        self.name = name
        self.unavailable = unavailable
        self.is_away = False
        self.is_busy = False
        """Whether it refuses every request, as with a status of 503."""
        self.loss = 0.0
        """The share of requests that are refused, lost, done without an answer, or done late."""
        self.ms_max = 20.0
        self.cut_from: set[str] = set()
        """The names of the nodes that cannot reach it."""

    def reaches(self, node: str) -> bool:
        return not self.is_away and node not in self.cut_from

    def heal(self) -> None:
        self.is_away, self.is_busy, self.loss, self.ms_max = False, False, 0.0, 20.0
        self.cut_from.clear()


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self.faults: Counter[str] = Counter()
        self.requests = 0
        self.crashes: Counter[str] = Counter()
        """How often a server ended just before a request or an answer, by what it was."""
        self.points: dict[str, list[str]] = {}
        """By program: the requests and answers that it could have ended before."""
        self._endings: dict[str, tuple[int, type[MachineGoneError]]] = {}
        self._late: set[str] = set()
        """The programs whose ending sends its request before."""

    def end_before(self, node: str, requests: int, error: type[MachineGoneError]) -> None:
        """End the server of a node before the n-th request or answer from now."""
        self._endings[node] = requests, error

    def end_after_sending(self, node: str, requests: int, error: type[MachineGoneError]) -> None:
        """End the server of a node when it has sent the request, which is done after LATE_MS."""
        self.end_before(node, requests, error)
        self._late.add(node)

    def clear_endings(self) -> None:
        self._endings.clear()

    def _crash(self, node: str, label: str, effect: Callable[[], object] | None = None) -> None:
        self.points.setdefault(node, []).append(label)
        left, error = self._endings.get(node, (0, MachineGoneError))
        if left > 1:
            self._endings[node] = left - 1, error
        elif left == 1:
            del self._endings[node]
            self.crashes[" ".join(label.split()[: 1 + label.startswith("answer")])] += 1
            if effect is None or node not in self._late:
                raise error(f"before {label}")
            self._world.after(LATE_MS, self._land, node, label, effect)
            raise error(f"after sending {label}")

    def _land(self, node: str, label: str, effect: Callable[[], object]) -> Any:
        """Do a request at its service; return what it returns, in a tuple, or its error."""
        try:
            outcome: Any = (effect(),)
        except Exception as error:
            if isinstance(error, AssertionError):
                self._world.failures.append(error)
            self._world.note(f"{node} {label}: {type(error).__name__}")
            return error
        self._world.note(f"{node} {label}")
        return outcome

    def request(
        self, process: Process, node: str, service: Service, label: str, effect: Callable[[], T]
    ) -> T:
        """Make a request from blocking code; return its answer, or raise its error."""
        fiber = current_fiber()
        assert fiber is not None, f"{label}: a request on the event loop would block it"
        self.requests += 1
        self._crash(node, label, effect)
        world, rng = self._world, self._world.rng
        fate = self._fate(service, node)
        if fate != "done":
            self.faults[f"{service.name}: {fate}"] += 1
            world.note(f"{node} {label}: {fate}")
        sent_ms = rng.random() * service.ms_max

        def land() -> None:
            outcome = self._land(node, label, effect)
            if fate == "done" and service.reaches(node):
                world.after(rng.random() * service.ms_max, answer, outcome, process=process)

        def answer(outcome: Any) -> None:
            if fiber in process.fibers and not is_over:
                is_over.append(None)
                self._crash(node, f"answer {label}")
                process.resume_fiber(fiber, outcome)

        is_over: list[None] = []
        unavailable = service.unavailable(f"{service.name}: {fate}")
        if fate == "refused":
            world.after(sent_ms, answer, unavailable, process=process)
        else:
            world.after(TIMEOUT_MS, answer, service.unavailable("timed out"), process=process)
            if fate in ("done", "lost answer"):
                world.after(sent_ms, land)
            elif fate == "late":
                world.after(TIMEOUT_MS + rng.random() * LATE_MS, land)
        (result,) = fiber.wait()
        return result  # type: ignore[no-any-return]

    def _fate(self, service: Service, node: str) -> str:
        rng = self._world.rng
        if service.is_busy:
            return "refused"
        if not service.reaches(node):
            return rng.choice(("refused", "refused", "lost request"))
        if rng.random() >= service.loss:
            return "done"
        return rng.choice(("refused", "lost request", "lost answer", "late"))
