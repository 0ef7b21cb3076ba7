from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(PROJECT).with_suffix("").parts)
    for package in ("shared", "topicsd", "router", "spark", "loadtest")
    for path in (PROJECT / package).rglob("*.py")
    if path.name != "__init__.py" and ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_doctests_of_a_module_pass(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_published_vectors_of_placement_are_among_them() -> None:
    assert "shared.ipc.placement" in MODULES
