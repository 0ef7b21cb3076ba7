from __future__ import annotations

from pathlib import Path

import pytest

from spark.errors import SourceError
from spark.jobs import replay_book
from spark.jobs.export_folder import ExportManifest, TopicExport
from spark.jobs.replay_book import ReplayBook, Target
from spark.source.stream_offset import encode
from tests.harness.machine.dying_folder import DyingFolder, ProcessDeath

TARGET = Target("http://127.0.0.1:4000", "", "copy.")


def runs(count: int, records: int = 10) -> list[ExportManifest]:
    return [
        ExportManifest(
            run=run,
            export="e",
            made_ms=0,
            topics={"orders": TopicExport(1, 1, 1 + records, records)},
            place=encode({}),
            files=[],
        )
        for run in range(1, count + 1)
    ]


def sent(
    folder: DyingFolder, manifests: list[ExportManifest], target: Target = TARGET
) -> list[tuple[int, ...]]:
    book = ReplayBook(folder, "replay")
    rounds = []
    for one in book.rounds(manifests, target):
        rounds.append((one.number, one.first_run, one.last_run))
        book.mark_done(one)
    return rounds


def test_what_came_since_is_a_round_of_its_own(tmp_path: Path) -> None:
    folder = DyingFolder(tmp_path)
    assert sent(folder, runs(3)) == [(1, 1, 3)]
    assert sent(folder, runs(3)) == []
    assert sent(folder, runs(5)) == [(2, 4, 5)]


def test_large_runs_are_rounds_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_book, "RECORDS_PER_ROUND", 25)
    assert sent(DyingFolder(tmp_path), runs(5)) == [(1, 1, 2), (2, 3, 4), (3, 5, 5)]


def test_a_round_that_has_begun_is_sent_again_as_it_was_planned(tmp_path: Path) -> None:
    whole = DyingFolder(tmp_path / "whole")
    sent(whole, runs(3))
    for dies_at in range(whole.change_count):
        root = tmp_path / str(dies_at)
        with pytest.raises(ProcessDeath):
            sent(DyingFolder(root, dies_at), runs(3))
        again = sent(DyingFolder(root), runs(5))
        # Either no plan was yielded, or it is the same one.
        assert again in ([(1, 1, 5)], [(1, 1, 3), (2, 4, 5)], [(2, 4, 5)]), dies_at
        assert (again == [(1, 1, 5)]) == (dies_at < 2), dies_at


def test_a_name_goes_to_one_place(tmp_path: Path) -> None:
    folder = DyingFolder(tmp_path)
    sent(folder, runs(1))
    message = "writes to topics .* 'copy.' at http://127.0.0.1:4000, not to topic x at http://b"
    with pytest.raises(SourceError, match=message):
        sent(folder, runs(2), Target("http://b", "x", ""))


def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="--name: must match"):
        ReplayBook(DyingFolder(tmp_path), "../other")
