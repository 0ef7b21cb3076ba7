"""Every version of the segment formats that was ever released stays readable, and is not written to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.golden.make_segment_golden import GOLDEN, described
from topicsd.disk.fs import RealFs
from topicsd.segment.data_file import VERSION
from topicsd.segment.entry import INDEX, TAGS, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore

pytestmark = pytest.mark.usefixtures("quiet_log")

VERSIONS = sorted(path.name for path in GOLDEN.glob("segment-format-*"))


def expected_of(version: str) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads(
        (GOLDEN / version / "expected.json").read_text(encoding="utf-8")
    )
    return content


def bytes_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }


def assert_all_readable(root: Path, version: str) -> None:
    reader = SegmentReader(LocalStore(RealFs(), str(root)), None)
    for expected in expected_of(version):
        name = SegmentName(*expected["name"])
        # A later release may know more of a segment, with a default for those from before.
        entry = msgspec.convert(list(expected["entry"].values()), SegmentEntry)
        actual = json.loads(json.dumps(described(reader, name, entry)))
        del actual["entry"], expected["entry"]
        assert actual == expected
    reader.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_in_them_is_found_in_them_and_nothing_is_written(version: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / version / "data", tmp_path / "data")
    assert_all_readable(tmp_path / "data", version)
    assert bytes_of(tmp_path / "data") == bytes_of(GOLDEN / version / "data")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_made_again_from_the_data_says_the_same(version: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / version / "data", tmp_path / "data")
    for suffix in (INDEX, TAGS):
        for path in (tmp_path / "data").rglob(f"*{suffix}"):
            path.unlink()
    assert_all_readable(tmp_path / "data", version)


def test_the_running_version_has_golden_files() -> None:
    assert f"segment-format-{VERSION}" in VERSIONS
