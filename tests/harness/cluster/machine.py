"""One machine of the cluster: its server starts, ends in every way, and starts again.

Promises: a subclass says what the server is (`boot`) and what a kill and a power cut leave of its disk
(`on_kill`, `on_power_cut`). Requests reach the server after a random time, and only if it runs then; a
stopped server gets them when it continues.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from tests.harness.cluster.answers import Reply, Request
from tests.harness.cluster.network import Network
from tests.harness.cluster.shared_catalog import CatalogClient, SharedCatalog
from tests.harness.cluster.shared_store import SharedStore, StoreClient
from tests.harness.cluster.virtual_time import Process, World
from tests.harness.machine.faults import MachineGoneError, PowerCut

CLIENT_MS: Final = 5.0
RESTART_MS: Final = 3_000


class Cluster:
    """What the machines share."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.network = Network(world)
        self.store = SharedStore(world, skew_ms=world.rng.randint(-3_600_000, 3_600_000))
        self.catalog = SharedCatalog(world, self.store)


class Machine(ABC):
    supported: frozenset[type[Request]]

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.process: Process | None = None
        self.is_lost = False
        self.runs = 0
        self.on_start: Callable[[], object] = lambda: None
        self.on_cut: Callable[[], object] = lambda: None

    # -- what a subclass defines -----------------------------------------------------------------------------

    @abstractmethod
    def boot(self, process: Process) -> None:
        """Start the server on the disk that the last run left."""

    @abstractmethod
    def on_kill(self) -> None:
        """Keep what is on the disk after a SIGKILL."""

    @abstractmethod
    def on_power_cut(self) -> None:
        """Keep what is on the disk after a power cut."""

    @abstractmethod
    def end_in_write(self, writes: int, is_power_cut: bool) -> None:
        """End the server or the machine in its n-th change of the disk from now."""

    @abstractmethod
    def clear_endings(self) -> None: ...

    @abstractmethod
    def handle(self, topic: str, request: Request, reply: Reply) -> None:
        """Serve a request that has arrived."""

    @abstractmethod
    def is_exported(self, topic: str) -> bool:
        """Return whether the server serves the topic and has nothing to export."""

    # -- one run ---------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive and not self.process.is_stopped

    def start(self) -> None:
        if self.process is not None or self.is_lost:
            return
        self.runs += 1
        self.world.note(f"{self.name} starts")
        self.on_start()
        process = self.process = Process(self.world, f"{self.name}/{self.runs}")
        process.on_gone = self._on_gone
        try:
            self.boot(process)
        except MachineGoneError as error:
            self._on_gone(error)

    def kill(self) -> None:
        self._end("killed", self.on_kill)

    def cut_power(self) -> None:
        self.on_cut()
        self._end("power cut", self.on_power_cut)

    def lose(self) -> None:
        self.is_lost = True
        self._end("lost", lambda: None)

    def _end(self, how: str, keep: Callable[[], None]) -> None:
        process = self.process
        if process is None:
            return
        self.world.note(f"{self.name} {how}")
        keep()
        self.process = None
        process.end()
        self.world.after(self.world.rng.random() * RESTART_MS, self.start)

    def _on_gone(self, error: MachineGoneError) -> None:
        if isinstance(error, PowerCut):
            self.cut_power()
        else:
            self.kill()

    def stop(self) -> None:
        if self.is_up and self.process is not None:
            self.world.note(f"{self.name} stops")
            self.process.stop()

    def resume(self) -> None:
        if self.process is not None and self.process.is_stopped:
            self.world.note(f"{self.name} continues")
            self.process.resume()

    # -- requests --------------------------------------------------------------------------------------------

    def request(self, topic: str, request: Request, reply: Reply) -> None:
        """Carry a request to the server that runs now, if one does."""
        if self.process is not None:
            ms = self.world.rng.random() * CLIENT_MS
            self.world.after(ms, self.handle, topic, request, reply, process=self.process)

    def store_client(self, process: Process) -> StoreClient:
        return StoreClient(self.cluster.network, process, self.name, self.cluster.store)

    def catalog_client(self, process: Process) -> CatalogClient:
        return CatalogClient(self.cluster.network, process, self.name, self.cluster.catalog)
