from __future__ import annotations

from typing import Any

import pytest

from loadtest.cluster.hammer.latencies import Latencies
from loadtest.cluster.hammer.tally import ClientReport, KindTally, Tally, client_summary
from loadtest.cluster.summary import COUNTERS, broker_totals, reconcile


def client(**changes: Any) -> dict[str, Any]:
    tally = Tally(
        KindTally(requests=10, records=100, bytes=1000), KindTally(requests=5, records=100, bytes=1000)
    )
    for name, value in changes.items():
        kind, _, field = name.partition("_")
        setattr(getattr(tally, kind), field, value)
    checked = {"acked": 100, "read": 100, "acked_unread": 0, "read_unacked": 0, "violation_count": 0}
    return client_summary([ClientReport(tally, {**checked, "violations": []}, True)])


def brokers(
    records: int = 100, size: int = 1000, read: int = 100, is_complete: bool = True
) -> dict[str, Any]:
    return {
        "produce": {"records": records, "bytes": size},
        "consume": {"records": read},
        "is_complete": is_complete,
    }


def sample(**nodes: dict[str, int] | None) -> dict[str, Any]:
    return {"brokers": {name: counts and metrics(**counts) for name, counts in nodes.items()}}


def metrics(records: int, started: int = 1) -> dict[str, Any]:
    counted = {section: dict.fromkeys(names, 0) for section, names in COUNTERS.items()}
    counted["produce"]["records"] = records
    return {"started_at_ms": started, **counted}


def test_equal_totals_have_no_problems() -> None:
    assert reconcile(client(), brokers()) == []


def test_more_acknowledged_than_accepted_is_an_error() -> None:
    (finding,) = reconcile(client(produce_records=101), brokers())
    assert (finding.level, finding.text) == (
        "error",
        "clients have 101 acknowledged records, brokers accepted 100",
    )


def test_more_acknowledged_than_accepted_is_a_warning_when_totals_are_missing() -> None:
    (finding,) = reconcile(client(produce_records=101), brokers(is_complete=False))
    assert finding.level == "warning"


def test_records_without_a_response_explain_more_at_the_brokers() -> None:
    assert reconcile(client(produce_unknown_records=10), brokers(records=110)) == []
    (finding,) = reconcile(client(produce_unknown_records=9), brokers(records=110))
    assert (finding.level, finding.text) == ("warning", "brokers accepted 110 records, clients know of 109")


@pytest.mark.parametrize(
    ("changes", "level", "text"),
    [
        ({"read": 99}, "error", "clients read 100 records, brokers served 99"),
        ({"size": 999}, "warning", "clients have 1000 acknowledged bytes, brokers accepted 999"),
    ],
)
def test_other_disagreements_are_found(changes: dict[str, Any], level: str, text: str) -> None:
    (finding,) = reconcile(client(), brokers(**changes))
    assert (finding.level, finding.text) == (level, text)


def test_violations_and_errors_of_clients_are_problems() -> None:
    counted = client(produce_errors={"503 BackPressureRejected": 2})
    counted["verification"] |= {"violation_count": 1, "violations": ["lost"], "read_to_end": False}
    finding = reconcile(counted, brokers())
    assert [one.level for one in finding] == ["error", "warning", "warning"]
    assert finding[0].text == "1 violations: lost"
    assert finding[2].text == "produce: 2 times 503 BackPressureRejected"


def test_totals_are_those_between_the_first_and_the_last_sample() -> None:
    first = sample(a={"records": 5}, b={"records": 7})
    last = sample(a={"records": 15}, b={"records": 8})
    totals, problems = broker_totals([first, sample(a=None, b=None), last])
    assert (totals["produce"]["records"], totals["is_complete"], problems) == (11, True, [])


def test_a_restarted_node_makes_totals_incomplete() -> None:
    first, last = sample(a={"records": 5}), sample(a={"records": 3, "started": 2})
    totals, (finding,) = broker_totals([first, last])
    assert (totals["produce"]["records"], totals["is_complete"]) == (3, False)
    assert finding.text == "a: restarted; what it counted before is missing"


def test_a_node_without_an_answer_makes_totals_incomplete() -> None:
    totals, (finding,) = broker_totals([sample(a={"records": 5}), sample(a=None)])
    assert (totals["produce"]["records"], totals["is_complete"]) == (0, False)
    assert "no answer to the last scrape" in finding.text


def test_reports_of_client_processes_are_added_up() -> None:
    def report(records: int, first: float, last: float, us: int) -> ClientReport:
        tally = Tally(KindTally(records=records, bytes=records * 10, first_at=first, last_at=last))
        tally.produce.latencies.add(us)
        tally.produce.fail("503")
        checked = {"acked": records, "violation_count": 1, "violations": [f"of {records}"]}
        return ClientReport(tally, checked, records > 50)

    joined = client_summary([report(100, 10.0, 20.0, 1000), report(50, 11.0, 25.0, 3000)])
    assert joined["produce"]["records"] == 150
    assert joined["produce"]["seconds"] == 15.0
    assert joined["produce"]["records_per_second"] == 10.0
    assert joined["produce"]["errors"] == {"503": 2}
    assert joined["produce"]["latency"]["max_ms"] == 3.0
    assert joined["verification"]["acked"] == 150
    assert joined["verification"]["violations"] == ["of 100", "of 50"]
    assert joined["verification"]["read_to_end"] is False


def test_a_percentile_is_at_most_3_percent_above_the_true_one() -> None:
    latencies = Latencies()
    for us in range(1, 20_001):
        latencies.add(us)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999):
        true = share * 20_000
        assert true <= latencies.percentile(share) <= true * 1.03
    assert latencies.percentile(1.0) == 20_000
