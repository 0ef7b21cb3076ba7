"""The model behind `docs/design/scale.md`, run small: equal counts each time, and the tables of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtest.store.scale import Size, tables, write_page
from loadtest.store.virtual_brokers import ClusterLoad, VirtualRequests, run_load

PAGE = Path(__file__).parents[3] / "docs" / "design" / "scale.md"
SMALL = Size((1, 2), (1, 20), (1, 20), 200, 20, 1.0, 0.02)
LOAD = ClusterLoad(2, 20, 100, 5, 100, 1.0)


def counts_of(load: ClusterLoad) -> VirtualRequests:
    return run_load(load)[0]


def test_the_same_load_asks_the_same() -> None:
    assert counts_of(LOAD) == counts_of(LOAD)


def test_brokers_make_a_blob_and_a_commit_each_linger_whatever_the_partitions() -> None:
    few, many = counts_of(LOAD._replace(partitions=2)), counts_of(LOAD._replace(partitions=500))
    assert few.puts == many.puts == few.calls["commit"] == many.calls["commit"]
    # Two brokers, four times a second.
    assert few.puts == pytest.approx(8, abs=2)
    assert few.items["slices"] < many.items["slices"] <= many.items["commit"]
    assert not few.calls["heads"]


def test_partitions_that_are_written_at_one_broker_have_fewer_extents() -> None:
    assert counts_of(LOAD._replace(has_own_broker=True)).items["slices"] < counts_of(LOAD).items["slices"]


def test_waiting_readers_of_a_broker_share_their_polls() -> None:
    idle = LOAD._replace(requests_per_second=0.001, has_readers=True, has_own_broker=True)
    counts = counts_of(idle)
    # Two brokers, each 250 ms.
    assert counts.calls["heads"] == pytest.approx(8, abs=2)
    assert counts.items["heads"] == 10 * counts.calls["heads"]
    assert (counts.puts, counts.gets, counts.calls["extents_from"]) == (0, 0, 0)


def test_a_reader_at_another_broker_gets_each_object_once() -> None:
    counts = counts_of(LOAD._replace(brokers=2, has_readers=True))
    assert counts.records_read > 0
    assert 0 < counts.gets <= 2 * counts.calls["extents_from"]


def test_the_tables_have_the_places_and_the_columns_of_the_page(tmp_path: Path) -> None:
    contents = tables(SMALL, "")
    text = PAGE.read_text(encoding="utf-8")
    page = tmp_path / "scale.md"
    page.write_text(text, encoding="utf-8")
    write_page(page, contents)
    written = page.read_text(encoding="utf-8")
    for name, content in contents.items():
        assert f"<!-- table: {name} -->\n{content}\n<!-- end -->" in written
        head = re.escape(content.partition("\n")[0])
        if name != "costs":
            assert re.search(rf"<!-- table: {name} -->\n{head}\n", text), (
                f"{name}: the page has other columns"
            )
        assert content.count("\n") >= 2
