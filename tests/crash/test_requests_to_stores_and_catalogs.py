"""A program that ends before or after any request to a store or a catalog: nothing is lost or left behind.

The histories are scripts: export, release, seal, adopt, adopt with loss, deleted topics, vacuum.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.harness.cluster.models.broken_engine import (
    Patch,
    adopt_at_the_exported_head,
    delete_without_cover,
    publish_before_put,
)
from tests.harness.cluster.scripted import scripts, vacuum_process
from tests.harness.cluster.scripted.scripted_run import ScriptedRun
from tests.harness.cluster.scripted.scripts import SCRIPTS, Script
from tests.harness.sweeps.request_sweep import all_endings, play, some_endings, sweep
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.ownership import rounds
from topicsd.engine.ownership.hand_on import HandOn
from topicsd.engine.ownership.rounds import CatalogRounds
from topicsd.offline import vacuum

pytestmark = pytest.mark.usefixtures("quiet_log")

ENDINGS_MIN = 150


def test_a_program_that_ends_at_any_kind_of_request_loses_nothing() -> None:
    seen: Counter[str] = Counter()
    count = sum(sweep(script, some_endings(script, seen)) for script in SCRIPTS)
    print(f"{count} endings at {len(seen)} kinds of requests and answers")
    assert count > ENDINGS_MIN
    for verb in ("create row", "raise", "publish", "seal", "adopt", "forget", "create", "delete", "list"):
        assert any(kind.startswith(verb) for kind in seen), verb
        assert any(kind.startswith(f"answer {verb}") for kind in seen), verb


@pytest.mark.deep
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_program_that_ends_at_any_request_loses_nothing(script: Script) -> None:
    assert sweep(script, all_endings(script)) > ENDINGS_MIN


# -- rules that are switched off: the sweep must find each ---------------------------------------------------


def do_not_finish_adopts(patch: pytest.MonkeyPatch) -> None:
    """A crash between the row and the topic of an adopt leaves the topic nowhere (S4)."""
    patch.setattr(CatalogRounds, "_note_orphan", lambda self, row: None)
    patch.setattr(HandOn, "_adopt", _adopt_once(HandOn._adopt))


def _adopt_once(real: Any) -> Any:
    def adopt(self: HandOn, name: str, accept_loss: bool) -> BackgroundJob[Any]:
        row = yield from self._row(name)
        if row is not None and row.owner == self._rounds.node_id and name not in self._shard.topics:
            return "adopted already"
        return (yield from real(self, name, accept_loss))

    return adopt


def forget_no_objects(patch: pytest.MonkeyPatch) -> None:
    """The objects of a deleted topic are not deleted."""
    patch.setattr(rounds, "_object_keys", lambda catalog, one, node_id: [])


def vacuum_without_the_catalog(patch: pytest.MonkeyPatch) -> None:
    """A vacuum takes what only the catalog names for an orphan (V1)."""
    patch.setattr(vacuum, "_keys_of", lambda catalog, row: [])
    patch.setattr(vacuum, "_stems_in_states", lambda *_: set())


def vacuum_nothing(patch: pytest.MonkeyPatch) -> None:
    """A vacuum deletes nothing."""
    patch.setattr(vacuum_process, "delete_objects", lambda *_: None)


BROKEN: list[tuple[Patch, Script]] = [
    (do_not_finish_adopts, scripts.seal_and_adopt),
    (adopt_at_the_exported_head, scripts.adopt_with_loss),
    (forget_no_objects, scripts.drop),
    (vacuum_without_the_catalog, scripts.vacuum),
    (vacuum_nothing, scripts.export),
    (publish_before_put, scripts.export),
    (delete_without_cover, scripts.release),
]


@pytest.mark.parametrize(("rule", "script"), BROKEN)
def test_a_rule_that_is_switched_off_is_found(
    rule: Patch, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(monkeypatch)
    with pytest.raises(AssertionError):
        play_all(script)


def play_all(script: Script) -> None:
    for ending in some_endings(script, Counter()):
        play(script, ScriptedRun(script.__name__, ending))
