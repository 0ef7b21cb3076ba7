"""Every format of a backup that was ever released stays readable: what was in it then is found in it now."""

from __future__ import annotations

import json

import pytest

from tests.golden.make_backup_golden import GOLDEN
from tests.golden.make_snapshot_golden import described
from tests.golden.test_golden_snapshots import assert_holds
from topicsd.backup.manifest import VERSION, decode_manifest

VERSIONS = sorted(path.name for path in GOLDEN.glob("backup-manifest-*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_in_a_manifest_is_found_in_it(version: str) -> None:
    manifest = decode_manifest((GOLDEN / version / "data" / "manifest").read_bytes())
    expected = json.loads((GOLDEN / version / "expected.json").read_text(encoding="utf-8"))
    assert_holds(described(manifest), expected, "manifest")


def test_the_running_version_has_a_golden_manifest() -> None:
    assert f"backup-manifest-{VERSION}" in VERSIONS
