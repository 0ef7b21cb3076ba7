"""The names of the in-memory disk: as calls see them, and as the media will have them.

Promises: a create, link, unlink, rename or make_dir is one operation that maps names to inodes. It stays
pending until every directory it touched was synced (a rename over two directories: both). `survivors` keeps
or loses each pending operation whole, so that a rename never leaves both names or none, and applies the kept
ones in their order.

One order is enforced, because every file system with an atomic rename keeps it: an operation that starts from
a name (rename, link, unlink) cannot survive without the pending one that created that name. Everything else
is free: a later create may survive an earlier unlink that does not. A surviving name has its inode, also when
the name under which that inode was created did not survive; a file in a directory whose own name is lost is
lost, however often it was synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

ROOT = 2

Entry = tuple[int, str]
Tree = dict[int, dict[str, int]]


class NameOp:
    """One pending operation: names set (None: removed), the syncs it waits for, its prerequisites."""

    __slots__ = ("effects", "needs", "stamp", "waits")

    def __init__(self, stamp: int, effects: dict[Entry, int | None], waits: set[int]) -> None:
        self.stamp = stamp
        self.effects = effects
        self.waits = waits
        self.needs: list[NameOp] = []


class Names:
    __slots__ = ("durable", "ops", "seen")

    def __init__(self, tree: Tree | None = None) -> None:
        """Start with names that are all durable."""
        self.seen: Tree = {ROOT: {}} if tree is None else tree
        self.durable: Tree = {directory: dict(names) for directory, names in self.seen.items()}
        self.ops: list[NameOp] = []

    def add_directory(self, inode: int) -> None:
        """Add an empty directory that has no name yet."""
        self.seen[inode] = {}
        self.durable[inode] = {}

    def apply(
        self,
        stamp: int,
        effects: dict[Entry, int | None],
        sources: Iterable[Entry] = (),
        durable: bool = False,
    ) -> None:
        op = NameOp(stamp, effects, set() if durable else {directory for directory, _ in effects})
        for source in sources:
            maker = next((earlier for earlier in reversed(self.ops) if earlier.effects.get(source)), None)
            if maker is not None:
                op.needs.append(maker)
        self.ops.append(op)
        _put(self.seen, effects)
        if durable:
            self._settle()

    def sync(self, directory: int) -> None:
        for op in self.ops:
            op.waits.discard(directory)
        self._settle()

    def sync_all(self) -> None:
        for op in self.ops:
            op.waits.clear()
        self._settle()

    def _settle(self) -> None:
        """Make complete operations durable, unless an earlier pending one touches the same name."""
        for op in reversed(self.ops):
            if not op.waits:
                for needed in op.needs:
                    needed.waits.clear()
        pending: list[NameOp] = []
        waiting: set[Entry] = set()
        for op in self.ops:
            if op.waits or not waiting.isdisjoint(op.effects):
                pending.append(op)
                waiting.update(op.effects)
            else:
                _put(self.durable, op.effects)
        self.ops = pending

    def survivors(self, kept: Callable[[NameOp], bool]) -> Tree:
        """Return the names after a power cut that kept these operations and their prerequisites."""
        alive: set[int] = set()
        for op in reversed(self.ops):
            if not op.waits or id(op) in alive or kept(op):
                alive.add(id(op))
                alive.update(id(needed) for needed in op.needs)
        tree: Tree = {directory: dict(names) for directory, names in self.durable.items()}
        for op in self.ops:
            if id(op) in alive:
                _put(tree, op.effects)
        return _reachable(tree)

    def copied(self) -> Names:
        twin = Names({directory: dict(names) for directory, names in self.seen.items()})
        twin.durable = {directory: dict(names) for directory, names in self.durable.items()}
        twins: dict[int, NameOp] = {}
        for op in self.ops:
            copy = NameOp(op.stamp, op.effects, set(op.waits))
            copy.needs = [twins[id(needed)] for needed in op.needs if id(needed) in twins]
            twins[id(op)] = copy
            twin.ops.append(copy)
        return twin


def _put(tree: Tree, effects: dict[Entry, int | None]) -> None:
    for (directory, name), inode in effects.items():
        if inode is None:
            tree[directory].pop(name, None)
        else:
            tree[directory][name] = inode


def _reachable(tree: Tree) -> Tree:
    """Return the tree without the directories that no name leads to."""
    reachable: Tree = {}
    todo = [ROOT]
    while todo:
        directory = todo.pop()
        reachable[directory] = tree[directory]
        todo.extend(inode for inode in tree[directory].values() if inode in tree and inode not in reachable)
    return reachable
