"""What the clients of a run count: requests, records, bytes, errors and latencies of each kind."""

from __future__ import annotations

from typing import Any

import msgspec

from loadtest.cluster.hammer.latencies import Latencies


class KindTally(msgspec.Struct):
    """One kind of request: produce or consume."""

    requests: int = 0
    records: int = 0
    """Acknowledged or read."""
    bytes: int = 0
    """Of those records, without offsets and JSON."""
    errors: dict[str, int] = {}
    """By status of the response, type of the error, or what failed in place of a response."""
    unknown_records: int = 0
    """Sent in requests without a response: they may be stored or not."""
    latencies: Latencies = msgspec.field(default_factory=Latencies)
    first_at: float = 0.0
    last_at: float = 0.0
    """The wall times of the first request and of the last record."""

    def fail(self, reason: str) -> None:
        self.errors[reason] = self.errors.get(reason, 0) + 1

    def merge(self, other: KindTally) -> None:
        self.requests += other.requests
        self.records += other.records
        self.bytes += other.bytes
        self.unknown_records += other.unknown_records
        self.latencies.merge(other.latencies)
        for reason, count in other.errors.items():
            self.errors[reason] = self.errors.get(reason, 0) + count
        firsts = [at for at in (self.first_at, other.first_at) if at]
        self.first_at = min(firsts, default=0.0)
        self.last_at = max(self.last_at, other.last_at)

    def summary(self) -> dict[str, Any]:
        seconds = max(self.last_at - self.first_at, 0.0)
        return {
            "requests": self.requests,
            "records": self.records,
            "bytes": self.bytes,
            "unknown_records": self.unknown_records,
            "errors": self.errors,
            "seconds": round(seconds, 3),
            "records_per_second": round(self.records / seconds, 1) if seconds else 0.0,
            "mb_per_second": round(self.bytes / seconds / 1e6, 3) if seconds else 0.0,
            "latency": self.latencies.summary(),
        }


class Tally(msgspec.Struct):
    produce: KindTally = msgspec.field(default_factory=KindTally)
    consume: KindTally = msgspec.field(default_factory=KindTally)
    end_to_end: Latencies = msgspec.field(default_factory=Latencies)
    """From the moment a record is sent to the moment a consumer has it."""

    def merge(self, other: Tally) -> None:
        self.produce.merge(other.produce)
        self.consume.merge(other.consume)
        self.end_to_end.merge(other.end_to_end)

    def summary(self) -> dict[str, Any]:
        return {
            "produce": self.produce.summary(),
            "consume": self.consume.summary(),
            "end_to_end": self.end_to_end.summary(),
        }


class ClientReport(msgspec.Struct):
    """What one client process leaves at its end."""

    tally: Tally
    verification: dict[str, Any]
    read_to_end: bool


def client_summary(reports: list[ClientReport]) -> dict[str, Any]:
    """Join the reports of all client processes into `client-summary.json`."""
    total = Tally()
    checked: dict[str, Any] = {}
    violations: list[str] = []
    for report in reports:
        total.merge(report.tally)
        violations += report.verification["violations"]
        for name, count in report.verification.items():
            if name != "violations":
                checked[name] = checked.get(name, 0) + count
    read_to_end = all(report.read_to_end for report in reports)
    checked |= {"violations": violations, "read_to_end": read_to_end}
    return {**total.summary(), "verification": checked, "client_processes": len(reports)}
