"""`topicsd store vacuum --apply` beside a running node, as a program whose requests can end it."""

from __future__ import annotations

from tests.harness.cluster.engine_node import DATA_DIR, EngineNode
from tests.harness.cluster.machine import Cluster
from tests.harness.cluster.shared_catalog import CatalogClient
from tests.harness.cluster.shared_store import StoreClient
from tests.harness.cluster.virtual_time import Process
from tests.harness.machine.faults import MachineGoneError
from topicsd.disk.layout import read_layout
from topicsd.disk.placement_file import read_placement
from topicsd.disk.read_only_fs import ReadOnlyFs
from topicsd.offline.data_dir import DataDir
from topicsd.offline.vacuum import (
    Leftovers,
    NamedObjects,
    add_catalog,
    delete_objects,
    find_leftovers,
    read_named,
)


def named_on_disk(node: EngineNode) -> NamedObjects:
    """Return what the directory of a node names now."""
    fs = ReadOnlyFs(node.disk)
    layout = read_layout(fs, DATA_DIR)
    assert layout is not None
    placement = read_placement(fs, DATA_DIR, layout.shards)
    return read_named(DataDir(fs, DATA_DIR, layout, placement, [0]))


class VacuumProcess:
    """One run of the command; `is_done` when it came to its end."""

    def __init__(self, node: EngineNode, grace_ms: int) -> None:
        self._node = node
        self._grace_ms = grace_ms
        self.name = f"vacuum {node.name}"
        cluster: Cluster = node.cluster
        process = Process(cluster.world, self.name)
        self.process: Process | None = process
        process.on_gone = self._on_gone
        self._store = StoreClient(cluster.network, process, self.name, cluster.store)
        self._catalog = CatalogClient(cluster.network, process, self.name, cluster.catalog)
        self.is_done = False
        self.outcome: object = None

    def start(self) -> None:
        process = self.process
        assert process is not None
        process.world.after(0, lambda: process.run_fiber(self._run, self._on_end), process=process)

    def has_ended(self) -> bool:
        return self.process is None

    def _run(self) -> Leftovers:
        named = named_on_disk(self._node)
        add_catalog(named, self._catalog, self._node.name)
        store = self._node.cluster.store
        now_ms = self._node.world.clock.now_ms() + store.skew_ms
        leftovers = find_leftovers(self._store, None, named, now_ms, self._grace_ms)
        delete_objects(self._store, [*leftovers.temporary, *leftovers.orphans])
        return leftovers

    def _on_end(self, outcome: object) -> None:
        self.outcome = outcome
        self.is_done = isinstance(outcome, Leftovers)
        self.process = None

    def _on_gone(self, error: MachineGoneError) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.end()
