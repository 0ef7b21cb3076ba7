"""A program that kills itself between any two statements of a SQLite catalog, and checks what is left.

For each statement of a script of verbs, a child process runs the script and sends itself SIGKILL before that
statement. Then the file must hold what the acknowledged verbs made, or that and the verb that was
interrupted; the repeated verb and the rest of the script must succeed. Run it as
`python -m tests.harness.catalog.catalog_crash FOLDER`; it prints the number of kills. With `shared` after the
folder the verbs are those of shared topics.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.harness.catalog.catalog_oracle import CatalogOracle
from topicsd.catalog.catalog import Catalog, Extent, ExtentObject, Ownership
from topicsd.catalog.sqlite_catalog import SqliteCatalog

A: Final = Ownership("a", 7, 1)


def _extent(first: int, last: int, generation: int = 0) -> Extent:
    return Extent(first, last, (ExtentObject(f"{first}.{generation}", 9, "c"),), first, last, 1, generation)


PARTS: Final = [_extent(1, 4), _extent(5, 6), _extent(7, 9)]
MERGED: Final = [_extent(1, 6, 1)]

SCRIPT: Final[tuple[Callable[[Catalog], object], ...]] = (
    lambda to: to.create("t", 1, 7, "a", 0),
    lambda to: to.raise_ceiling("t", A, 20),
    lambda to: to.publish_extents("t", A, PARTS, []),
    lambda to: to.publish_extents("t", A, MERGED, PARTS[:2]),
    lambda to: to.publish_extents("t", A, [], MERGED),
    lambda to: to.seal("t", A, 9, "entry"),
    lambda to: to.adopt("t", "b", 7, 1),
    lambda to: to.forget("t", Ownership("b", 7, 2)),
)


def facts(catalog: Catalog) -> object:
    return catalog.list("", "", 10), catalog.extents_from("t", 0, 10)


class Crash(NamedTuple):
    """A script of verbs, and what it is compared with."""

    script: tuple[Callable[[Any], object], ...]
    open: Callable[[str, Callable[..., sqlite3.Connection]], Any]
    oracle: Callable[[], Any]
    facts: Callable[[Any], object]


LOCAL: Final = Crash(SCRIPT, SqliteCatalog, CatalogOracle, facts)


class KillingConnection(sqlite3.Connection):
    """A connection whose process dies before its n-th statement."""

    left = 0

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if KillingConnection.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        KillingConnection.left -= 1
        return super().execute(statement, *parameters)

    def executemany(self, statement: str, parameters: Iterable[Any]) -> sqlite3.Cursor:
        for one in parameters:
            self.execute(statement, one)
        return self.cursor()


def _connect_killing(name: str, **options: Any) -> sqlite3.Connection:
    return sqlite3.connect(name, factory=KillingConnection, **options)


def run_until_killed(crash: Crash, path: str, statements: int, acknowledged: Path) -> bool:
    """Run the script in a child process; return whether it was killed."""
    child = os.fork()
    if child == 0:
        KillingConnection.left = statements
        catalog = crash.open(path, _connect_killing)
        for number, verb in enumerate(crash.script, 1):
            verb(catalog)
            acknowledged.write_text(str(number))
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def after(crash: Crash, verbs: int) -> object:
    oracle = crash.oracle()
    for verb in crash.script[:verbs]:
        verb(oracle)
    return crash.facts(oracle)


def check(crash: Crash, path: str, acknowledged: int) -> None:
    catalog = crash.open(path, sqlite3.connect)
    left = crash.facts(catalog)
    assert left in (after(crash, acknowledged), after(crash, acknowledged + 1)), (acknowledged, left)
    for verb in crash.script[acknowledged:]:
        verb(catalog)
    assert crash.facts(catalog) == after(crash, len(crash.script))
    catalog.close()


def main(folder: Path, crash: Crash) -> None:
    statements = 0
    while True:
        path, acknowledged = str(folder / f"{statements}.sqlite"), folder / f"{statements}.acknowledged"
        acknowledged.write_text("0")
        killed = run_until_killed(crash, path, statements, acknowledged)
        check(crash, path, int(acknowledged.read_text()))
        if not killed:
            break
        statements += 1
    print(statements)


if __name__ == "__main__":
    from tests.harness.catalog.shared_crash import SHARED

    main(Path(sys.argv[1]), SHARED if sys.argv[2:] == ["shared"] else LOCAL)
