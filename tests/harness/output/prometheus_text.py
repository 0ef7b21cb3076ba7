"""A parser of Prometheus's text format that is stricter than Prometheus.

Text that a scraper would accept silently, or drop with half of the scrape, fails here with its line: a family
without help or type, or declared twice; a duplicate series; a counter that is not called `_total`; a
histogram whose buckets fall, or whose last one is not its count.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Labels = frozenset[tuple[str, str]]

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([0-9.e+-]+|\+Inf)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
_KINDS = ("gauge", "counter", "histogram")
_PARTS = ("_bucket", "_sum", "_count")


class WrongText(Exception):
    pass


class Family(NamedTuple):
    kind: str
    help: str
    series: dict[tuple[str, Labels], float]
    """By the name of the line, which in a histogram ends with `_bucket`, `_sum` or `_count`."""

    def total(self) -> float:
        return sum(self.series.values())


def parse(text: str) -> dict[str, Family]:
    """Return all families by name; raise WrongText with the wrong line."""
    if not text.endswith("\n"):
        raise WrongText("the last line does not end")
    families: dict[str, Family] = {}
    name, help_text, family = "", "", None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, _, help_text = line.removeprefix("# HELP ").partition(" ")
            if not help_text.strip() or name in families:
                raise WrongText(line)
            family = None
        elif line.startswith("# TYPE "):
            typed, _, kind = line.removeprefix("# TYPE ").partition(" ")
            if typed != name or family is not None or kind not in _KINDS:
                raise WrongText(line)
            if (kind == "counter") != name.endswith("_total"):
                raise WrongText(line)
            family = families[name] = Family(kind, help_text, {})
        else:
            _add(name, family, line)
    for name, family in families.items():
        _check(name, family)
    return families


def _add(name: str, family: Family | None, line: str) -> None:
    sample = _SAMPLE.fullmatch(line)
    if sample is None or family is None:
        raise WrongText(line)
    parts = [name + part for part in _PARTS] if family.kind == "histogram" else [name]
    if sample[1] not in parts:
        raise WrongText(line)
    key = (sample[1], _labels(sample[2], line))
    if key in family.series:
        raise WrongText(line)
    family.series[key] = float(sample[3])


def _labels(text: str | None, line: str) -> Labels:
    if text is None:
        return frozenset()
    labels: dict[str, str] = {}
    at = 0
    while at <= len(text):
        label = _LABEL.match(text, at)
        if label is None or label[1] in labels or text[label.end() : label.end() + 1] not in ("", ","):
            raise WrongText(line)
        labels[label[1]] = label[2]
        at = label.end() + 1
    return frozenset(labels.items())


def _check(name: str, family: Family) -> None:
    if not family.series:
        raise WrongText(f"{name} has no series")
    if family.kind != "histogram":
        return
    buckets: dict[Labels, list[tuple[float, float]]] = {}
    for (part, labels), value in family.series.items():
        if part == f"{name}_bucket":
            bound = dict(labels)["le"]
            rest = frozenset(one for one in labels if one[0] != "le")
            buckets.setdefault(rest, []).append((float(bound), value))
    for labels, series in buckets.items():
        counts = [count for _, count in sorted(series)]
        whole = family.series[f"{name}_count", labels]
        if sorted(counts) != counts or max(series) != (float("inf"), whole):
            raise WrongText(f"{name}: the buckets of {sorted(labels)} do not add up")
        if (f"{name}_sum", labels) not in family.series:
            raise WrongText(f"{name}: {sorted(labels)} has no sum")
