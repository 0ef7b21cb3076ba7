"""Every bundle format that was ever released stays readable: what was in it then is found in it now."""

from __future__ import annotations

import json

import pytest

from tests.golden.make_bundle_golden import GOLDEN
from tests.golden.make_snapshot_golden import described
from tests.golden.test_golden_snapshots import assert_holds
from topicsd.disk.layout import BUNDLE_NAME
from topicsd.engine.bundle.bundle_format import VERSION, decode_bundle

VERSIONS = sorted(path.name for path in GOLDEN.glob("bundle-format-*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_in_a_bundle_is_found_in_it(version: str) -> None:
    bundle = decode_bundle((GOLDEN / version / "data" / BUNDLE_NAME).read_bytes())
    expected = json.loads((GOLDEN / version / "expected.json").read_text(encoding="utf-8"))
    assert_holds(described(bundle), expected, "bundle")


def test_the_running_version_has_a_golden_bundle() -> None:
    assert f"bundle-format-{VERSION}" in VERSIONS
