"""What many brokers and partitions ask of the catalog and the store: `python -m loadtest.store.scale [URL]`.

The counts come from real brokers on virtual time (`loadtest/store/virtual_brokers.py`), the times and sizes
from measurements of a catalog: that of the URL, and a SQLite file. `--write PAGE` puts the tables into a
page, between its `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from loadtest.store.catalog_costs import NAMES, PARTS, TABLES, THREADS, Costs, measure
from loadtest.store.virtual_brokers import ClusterLoad, VirtualRequests, run_load
from topicsd.catalog.shared.shared_catalog import REPEATED_MS

GB: Final = 1e9
MB: Final = 1e6
HOUR: Final = 3600
MONTH_SECONDS: Final = 730 * HOUR
RECORDS: Final = 10
RECORD_BYTES: Final = 1024
COMPACTED_TOPICS: Final = 50


class Size(NamedTuple):
    """How much of the model runs."""

    brokers: tuple[int, ...] = (1, 10, 100)
    partitions: tuple[int, ...] = (1, 100, 10_000, 100_000)
    partitions_read: tuple[int, ...] = (1, 100, 10_000)
    """In the runs with a reader for each partition."""
    writes_per_second: float = 200
    """Requests to each broker."""
    writes_read_per_second: float = 20
    """The same in the runs with readers."""
    seconds: float = 1.0
    measured_seconds: float = 2.0


FULL: Final = Size()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(head), "|".join(["---"] + ["--:"] * (len(head) - 1)), *map(" | ".join, rows)]
    return "\n".join(f"| {one} |" if number != 1 else f"|{one}|" for number, one in enumerate(lines))


def number(value: float) -> str:
    """Format a number with three digits.

    >>> [number(one) for one in (0, 0.0123, 4.567, 1234.5, 98765432)]
    ['0', '0.0123', '4.57', '1,230', '98,800,000']
    """
    if not value:
        return "0"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:.3g}"


def busy(counts: VirtualRequests, costs: Costs) -> float:
    """Return the share of what the catalog can do."""
    calls, items = counts.calls, counts.items
    ms = (
        costs.commits(calls["commit"], items["slices"], items["commit"])
        + costs.polls(calls["heads"], items["heads"])
        + calls["extents_from"] * costs.extents
    )
    return ms / 1000 / counts.seconds / costs.at_once


def percent(share: float) -> str:
    return f"{number(100 * share)} %"


class Write(NamedTuple):
    load: ClusterLoad
    counts: VirtualRequests
    compaction: tuple[int, VirtualRequests] | None


def write_runs(size: Size) -> list[Write]:
    runs: list[Write] = []
    for brokers in size.brokers:
        for partitions in size.partitions:
            for has_own_broker in (False, True) if brokers > 1 else (False,):
                load = ClusterLoad(
                    brokers,
                    partitions,
                    size.writes_per_second,
                    RECORDS,
                    RECORD_BYTES,
                    size.seconds if brokers <= max(10, size.brokers[0]) else size.seconds / 2,
                    has_own_broker,
                )
                # Objects are kept for a compaction, which is the same for any number of brokers.
                topics = COMPACTED_TOPICS if brokers == size.brokers[0] else 0
                runs.append(Write(load, *run_load(load, topics)))
    return runs


def place(load: ClusterLoad) -> list[str]:
    clients = "one broker" if load.has_own_broker or load.brokers == 1 else "any broker"
    return [f"{load.brokers:,}", f"{load.partitions:,}", clients]


PLACE: Final = ("brokers", "partitions", "a partition is written at")


def writes_table(runs: Sequence[Write], costs: Costs) -> str:
    head = (
        *PLACE,
        "commits/s",
        "parts a commit",
        "extents a commit",
        "MB/s",
        "KB a PUT",
        "$ a GB",
        "$ a month",
    )
    rows: list[list[str]] = []
    for load, counts, _ in runs:
        commits = counts.calls["commit"]
        values = (
            commits / counts.seconds,
            counts.items["commit"] / commits,
            counts.items["slices"] / commits,
            counts.bytes_written / MB / counts.seconds,
            counts.bytes_written / 1000 / counts.puts,
            counts.dollars / counts.bytes_written * GB,
            counts.dollars / counts.seconds * MONTH_SECONDS,
        )
        rows.append([*place(load), *map(number, values), percent(busy(counts, costs))])
    return table((*head, "of the catalog"), rows)


def rows_table(runs: Sequence[Write], costs: Costs) -> str:
    head = (
        *PLACE,
        "rows of append ids",
        "MB of them",
        "extents an hour",
        "MB an hour",
        "lookups of new topics",
    )
    rows: list[list[str]] = []
    for load, counts, _ in runs:
        kept = counts.items["commit"] / counts.seconds * REPEATED_MS / 1000
        extents = counts.items["slices"] / counts.seconds * HOUR
        sizes = kept * costs.row_bytes["parts"] / MB, extents, extents * costs.row_bytes["extents"] / MB
        rows.append([*place(load), number(kept), *map(number, sizes), number(load.brokers * load.partitions)])
    return table(head, rows)


def compaction_table(runs: Sequence[Write]) -> str:
    head = (
        "partitions",
        "extents a topic",
        "requests to the catalog a topic",
        "GETs a GB",
        "PUTs a GB",
        "$ a GB",
    )
    rows: list[list[str]] = []
    for load, _, compaction in runs:
        if compaction is None or not compaction[0]:
            continue
        merged, counts = compaction
        per_gb = GB / counts.bytes_written
        values = (
            counts.gets / merged,
            counts.calls.total() / merged,
            counts.gets * per_gb,
            counts.puts * per_gb,
            counts.dollars * per_gb,
        )
        rows.append([f"{load.partitions:,}", *map(number, values)])
    return table(head, rows)


def reads_table(size: Size, costs: Costs) -> str:
    head = (
        *("brokers", "partitions and readers", "a partition is read at", "polls/s", "topics a poll"),
        *("lookups/s", "GETs/s", "records/s", "$ a GB read", "of the catalog"),
    )
    rows: list[list[str]] = []
    for brokers in size.brokers:
        for partitions in size.partitions_read:
            for has_own_broker in (False, True) if brokers > 1 else (False,):
                rate = size.writes_read_per_second
                seconds = size.seconds / 2
                load = ClusterLoad(
                    brokers, partitions, rate, RECORDS, RECORD_BYTES, seconds, has_own_broker, True
                )
                counts, _ = run_load(load)
                polls, data = counts.calls["heads"], counts.records_read * RECORD_BYTES
                values = (
                    polls / counts.seconds,
                    counts.items["heads"] / polls if polls else 0,
                    counts.calls["extents_from"] / counts.seconds,
                    counts.gets / counts.seconds,
                    counts.records_read / counts.seconds,
                )
                # Without what was paid for the writes.
                price = counts.gets * 0.0004 / 1000 / data * GB if data else 0
                rows.append([*place(load), *map(number, values), number(price), percent(busy(counts, costs))])
    return table(head, rows)


def costs_table(measured: dict[str, Costs]) -> str:
    names = list(measured)
    rows: list[list[str]] = []

    def add(title: str, values: Iterable[float], unit: str = " ms") -> None:
        rows.append([title, *(number(value) + unit for value in values)])

    for parts in PARTS:
        add(f"commit to {parts} topics, one part each", (one.commit[parts] for one in measured.values()))
    add(f"commit of {PARTS[1]} parts to one topic", (one.commit_parts for one in measured.values()))
    add(f"commits of {THREADS} connections beside one", (one.at_once for one in measured.values()), " times")
    for count in NAMES:
        add(f"heads of {count:,} topics", (one.heads[count] for one in measured.values()))
    add("lookup of extents", (one.extents for one in measured.values()))
    add("claim of a compaction", (one.claim for one in measured.values()))
    add("heartbeat", (one.heartbeat for one in measured.values()))
    for one in TABLES:
        add(f"row of {one}, with indexes", (costs.row_bytes[one] for costs in measured.values()), " B")
    return table(("", *names), rows)


def tables(size: Size, url: str) -> dict[str, str]:
    """Return the tables of the page by name; they are about the catalog of the URL, or a SQLite file."""
    measured: dict[str, Costs] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "catalog.db")
        measured["SQLite"] = measure(f"sqlite://{path}", size.measured_seconds)
    if url:
        measured["PostgreSQL"] = measure(url, size.measured_seconds)
    costs = measured.get("PostgreSQL", measured["SQLite"])
    runs = write_runs(size)
    return {
        "costs": costs_table(measured),
        "writes": writes_table(runs, costs),
        "rows": rows_table(runs, costs),
        "compaction": compaction_table(runs),
        "reads": reads_table(size, costs),
    }


def write_page(page: Path, contents: dict[str, str]) -> None:
    """Replace the tables of a page."""
    text = page.read_text(encoding="utf-8")
    for name, content in contents.items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, mark, rest = text.partition(begin)
        assert mark, f"{page}: no table {name}"
        text = before + begin + content + "\n" + rest[rest.index(end) :]
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.store.scale", description=__doc__)
    parser.add_argument("url", nargs="?", default="", help="the catalog to measure: postgresql://…")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page to put the tables into")
    arguments = parser.parse_args()
    contents = tables(FULL, arguments.url)
    for name, content in contents.items():
        print(f"\n{name}\n\n{content}", flush=True)
    if arguments.write is not None:
        write_page(arguments.write, contents)


if __name__ == "__main__":
    main()
