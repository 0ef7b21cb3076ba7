"""Changes of named keys that end at any disk call: KEYS.json is whole, and has what was answered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.ipc.key_file import StoredKey
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import DATA_DIR
from tests.harness.sweeps.crash_sweep import DEEP
from tests.harness.sweeps.script_sweep import sweep_kills, sweep_power_cuts
from tests.unit.router.supervision.test_named_keys import Server
from topicsd.disk.atomic_replace import TEMPORARY_SUFFIX, exists
from topicsd.disk.key_file import key_file_problem, keys_path, read_keys, write_keys

OUTCOMES = 60 if DEEP else 8
CHANGES = 6
CALLS = 5
"""The disk calls of one replacement: create, write, sync, rename, and the sync of the directory."""
# A long list, so that the file has several blocks.
PREFIXES = tuple(f"team-{number}." for number in range(300))


class KeyChanges(Server):
    """Changes of every kind, one after the other."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__()
        self.disk = disk
        self.is_over = False
        self.answered: list[StoredKey] = []
        """The keys as of the last answer."""
        self.latest: list[StoredKey] = []
        """The keys as of the last change that began."""
        try:
            self._run()
        except MachineGoneError:
            return
        self.is_over = True

    def _run(self) -> None:
        root = self.first()
        self._on_answer()
        for operation, name, more in (
            ("put_key", "ci", {"scopes": ("read",), "prefixes": PREFIXES}),
            ("put_key", "ci", {"scopes": ("read", "write")}),
            ("rotate_key", "ci", {"overlap_ms": 60_000}),
            ("put_key", "billing", {"expires_ms": self.clock.now_ms() + 1000}),
            ("delete_key", "ci", {}),
        ):
            assert isinstance(self.ask(operation, name, root, **more), dict)
            self._on_answer()

    def _on_answer(self) -> None:
        self.answered = list(self.reload.stored)
        assert self.answered == self.latest

    def _write(self, keys: Sequence[StoredKey]) -> None:
        self.latest = list(keys)
        write_keys(self.disk, DATA_DIR, keys)

    def judge(self, disk: MemoryDisk, *, is_kept: bool) -> None:
        assert is_kept
        assert not key_file_problem(disk, DATA_DIR)
        keys = read_keys(disk, DATA_DIR)
        assert keys in (self.answered, self.latest)
        # The next change replaces the file whatever the last one left.
        write_keys(disk, DATA_DIR, keys[:1])
        assert read_keys(disk, DATA_DIR) == keys[:1]
        assert not exists(disk, keys_path(DATA_DIR) + TEMPORARY_SUFFIX)


def test_keys_survive_a_power_cut_at_every_call() -> None:
    assert sweep_power_cuts(KeyChanges, OUTCOMES, is_kept=True) == CHANGES * CALLS


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
def test_keys_survive_a_kill_at_every_call(torn: bool) -> None:
    assert sweep_kills(KeyChanges, torn=torn) == CHANGES * CALLS
