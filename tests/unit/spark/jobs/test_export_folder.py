from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.runtime.clock import SystemClock
from spark.errors import SourceError
from spark.jobs.export import commit
from spark.jobs.export_folder import ExportFolder, ExportManifest, FolderBusy, TopicExport
from tests.harness.machine.dying_folder import DyingFolder, ProcessDeath

TOPICS = ("orders", "clicks")


def write_run(folder: DyingFolder, head: int, spark_dies: bool = False) -> ExportManifest | None:
    """What an export does, with files in which there are the seqs of their records, in the place of Spark."""
    target = ExportFolder(folder)
    with target.only_writer():
        last = target.settle()
        run = 1 if last is None else last.run + 1
        exported = {}
        for topic in TOPICS:
            start = 1 if last is None else last.positions[topic].offset
            for part, seqs in enumerate((range(start, head, 2), range(start + 1, head, 2))):
                day = Path(target.staging(run)) / f"topic={topic}" / "day=2026-11-18"
                day.mkdir(parents=True, exist_ok=True)
                (day / f"part-{part}-{head}.parquet").write_text(json.dumps(list(seqs)))
                if spark_dies:
                    raise ProcessDeath
            exported[topic] = TopicExport(7, start, head, head - start)
        return commit(target, last, exported, SystemClock())


def rows(root: Path) -> dict[str, list[int]]:
    """As any reader of Parquet has the folder."""
    seqs: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    for path in root.rglob("*.parquet"):
        name = path.relative_to(root).parts[0]
        if not name.startswith("_"):
            seqs[name.removeprefix("topic=")] += json.loads(path.read_text())
    return {topic: sorted(topic_seqs) for topic, topic_seqs in seqs.items()}


def up_to(head: int) -> dict[str, list[int]]:
    return {topic: list(range(1, head)) for topic in TOPICS}


def changes_of_a_run(root: Path) -> int:
    folder = DyingFolder(root)
    write_run(folder, 10)
    return folder.change_count


def test_a_run_that_dies_anywhere_leaves_no_record_twice_and_the_next_has_them_all(tmp_path: Path) -> None:
    count = changes_of_a_run(tmp_path / "counted")
    assert count > 10
    for dies_at in range(count):
        root = tmp_path / str(dies_at)
        write_run(DyingFolder(root), 10)
        with pytest.raises(ProcessDeath):
            write_run(DyingFolder(root, dies_at), 20)
        for seqs in rows(root).values():
            assert len(seqs) == len(set(seqs))
        target = ExportFolder(DyingFolder(root))
        last = target.last()
        assert last is not None
        named = {name for one in (target._manifest(run) for run in target._runs()) for name in one.files}
        placed = {name for name, _ in target.folder.files("") if name.startswith("topic=")}
        assert placed <= named, dies_at
        write_run(DyingFolder(root), 30)
        assert rows(root) == up_to(30), dies_at
        named = {name for one in target.manifests() for name in one.files}
        assert named == {name for name, _ in target.folder.files("") if name.startswith("topic=")}
        assert target.folder.names("_staging") == []


def test_settling_may_die_too(tmp_path: Path) -> None:
    for dies_at in range(changes_of_a_run(tmp_path / "counted")):
        root = tmp_path / str(dies_at)
        # Behind the manifest, in front of the first file.
        with pytest.raises(ProcessDeath):
            write_run(DyingFolder(root, 3), 10)
        try:
            ExportFolder(DyingFolder(root, dies_at)).settle()
        except ProcessDeath:
            # A run whose files are not all in place is not listed.
            runs = ExportFolder(DyingFolder(root)).manifests()
            assert not runs or rows(root) == up_to(10)
            assert all(len(seqs) == len(set(seqs)) for seqs in rows(root).values())
            ExportFolder(DyingFolder(root)).settle()
            assert rows(root) == up_to(10)
        else:
            break
    else:
        pytest.fail("it never came to its end")
    ExportFolder(DyingFolder(root)).settle()
    assert rows(root) == up_to(10)


def test_what_spark_left_half_is_thrown_away(tmp_path: Path) -> None:
    write_run(DyingFolder(tmp_path), 10)
    with pytest.raises(ProcessDeath):
        write_run(DyingFolder(tmp_path), 20, spark_dies=True)
    assert rows(tmp_path) == up_to(10)
    write_run(DyingFolder(tmp_path), 15)
    assert rows(tmp_path) == up_to(15)


def test_two_jobs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with ExportFolder(DyingFolder(tmp_path)).only_writer(), pytest.raises(FolderBusy, match="another job"):
        write_run(DyingFolder(tmp_path), 10)
    write_run(DyingFolder(tmp_path), 10)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "0000001.json: invalid manifest: "), ('"version": 2', "0000001.json: version must be 1, got 2")],
)
def test_a_manifest_that_is_not_ours_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    write_run(DyingFolder(tmp_path), 10)
    manifest = tmp_path / "_manifest" / "0000001.json"
    manifest.write_text(text if text == "{" else manifest.read_text().replace('"version": 1', text, 1))
    with pytest.raises(SourceError, match=sentence):
        ExportFolder(DyingFolder(tmp_path)).last()
