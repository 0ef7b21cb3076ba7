"""The summary of a run: what clients and brokers counted, and whether both agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from loadtest.cluster.run_folder import RunFolder, read_lines

COUNTERS: Final = {
    "produce": ("requests", "records", "bytes", "errors"),
    "consume": ("requests", "records", "bytes", "errors"),
    "store": ("put", "range_get", "info", "list", "bytes_written", "bytes_read"),
    "catalog": ("requests",),
    "billing_estimate": ("requests_dollars",),
}
"""The counters of a broker that are added up, by section of its `/metrics`."""
STARTED: Final = "started_at_ms"


class Disagreement(msgspec.Struct, frozen=True):
    """A disagreement, or what makes an agreement worth less."""

    level: Literal["warning", "error"]
    text: str


def broker_totals(samples: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[Disagreement]]:
    """Return what the brokers of all nodes counted between the first and the last sample.

    A node that was restarted in between has counted from 0 again, and what it counted before is lost.
    """
    totals: dict[str, Any] = {section: dict.fromkeys(names, 0) for section, names in COUNTERS.items()}
    problems = []
    for node in samples[-1]["brokers"] if samples else ():
        documents = [sample["brokers"].get(node) for sample in samples]
        first, last = documents[0], documents[-1]
        if last is None:
            problems.append(
                Disagreement("warning", f"{node}: no answer to the last scrape; its totals are missing")
            )
            continue
        starts = {one[STARTED] for one in documents if one is not None}
        has_restarted = len(starts) > 1 or first is None
        if has_restarted:
            problems.append(Disagreement("warning", f"{node}: restarted; what it counted before is missing"))
        for section, names in COUNTERS.items():
            for name in names:
                before = 0 if has_restarted else first[section][name]
                totals[section][name] += last[section][name] - before
    totals["is_complete"] = not problems
    return totals, problems


def reconcile(client: Mapping[str, Any], brokers: Mapping[str, Any]) -> list[Disagreement]:
    """Compare the totals of clients and brokers.

    An acknowledged record that no broker accepted is an error, unless totals of brokers are missing. More at
    the brokers than at the clients is expected only up to what was sent without a response.
    """
    problems = []
    level: Literal["warning", "error"] = "error" if brokers["is_complete"] else "warning"
    acked, accepted = client["produce"]["records"], brokers["produce"]["records"]
    unknown = client["produce"]["unknown_records"]
    if acked > accepted:
        text = f"clients have {acked} acknowledged records, brokers accepted {accepted:.0f}"
        problems.append(Disagreement(level, text))
    if accepted > acked + unknown:
        text = f"brokers accepted {accepted:.0f} records, clients know of {acked + unknown}"
        problems.append(Disagreement("warning", text))
    read, served = client["consume"]["records"], brokers["consume"]["records"]
    if read > served:
        problems.append(Disagreement(level, f"clients read {read} records, brokers served {served:.0f}"))
    acked_bytes, accepted_bytes = client["produce"]["bytes"], brokers["produce"]["bytes"]
    if acked_bytes > accepted_bytes:
        text = f"clients have {acked_bytes} acknowledged bytes, brokers accepted {accepted_bytes:.0f}"
        problems.append(Disagreement("warning", text))
    return problems + client_problems(client)


def client_problems(client: Mapping[str, Any]) -> list[Disagreement]:
    """Return what the clients found without the brokers."""
    problems = []
    checked = client["verification"]
    if checked["violation_count"]:
        first = "; ".join(checked["violations"][:3])
        problems.append(Disagreement("error", f"{checked['violation_count']} violations: {first}"))
    if not checked["read_to_end"]:
        problems.append(
            Disagreement("warning", f"not read to the end: {checked['acked_unread']} records are left")
        )
    for kind in ("produce", "consume"):
        for reason, count in client[kind]["errors"].items():
            problems.append(Disagreement("warning", f"{kind}: {count} times {reason}"))
    return problems


def cpu_seconds(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the CPU time of each process between the first and the last sample that both have it.

    >>> first, last = {"node-0": {"cpu_seconds": 1.5}, "store": None}, {"node-0": {"cpu_seconds": 4.0}}
    >>> cpu_seconds([{"processes": first}, {"processes": last}])
    {'node-0': 2.5}
    """
    if not samples:
        return {}
    first, last = samples[0]["processes"], samples[-1]["processes"]
    both = [name for name, cost in last.items() if cost is not None and first.get(name) is not None]
    return {name: round(last[name]["cpu_seconds"] - first[name]["cpu_seconds"], 2) for name in both}


EXPECTED: Final = (
    "resolved-config.json",
    "stack.json",
    "broker-layout.json",
    "environment.json",
    "routing-manifest.json",
    "metrics-30s.jsonl",
    "client-30s.jsonl",
    "client-summary.json",
    "remap-events.jsonl",
    "request-traces.jsonl",
)


def make_summary(folder: RunFolder, samples_before: int = 0) -> dict[str, Any]:
    """Join the documents of a run; `samples_before` are of an earlier load on the same cluster."""
    client = msgspec.json.decode(folder.client_summary.read_bytes())
    samples = read_lines(folder.metrics)[samples_before:]
    brokers, problems = broker_totals(samples)
    problems += reconcile(client, brokers)
    artifacts = folder.artifacts()
    problems += [Disagreement("warning", f"{name} is missing") for name in EXPECTED if name not in artifacts]
    return {
        "scenario": msgspec.to_builtins(folder.scenario),
        "client": client,
        "brokers": brokers,
        "remap_events": len(read_lines(folder.remap_events)),
        "samples": len(samples),
        "cpu_seconds": cpu_seconds(samples),
        "last_sample": samples[-1] if samples else None,
        "artifacts": artifacts,
        "reconciliation": {
            "is_ok": not any(one.level == "error" for one in problems),
            "problems": problems,
        },
    }
