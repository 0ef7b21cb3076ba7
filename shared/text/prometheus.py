"""The text format of Prometheus: the lines in front of the series of one metric."""

from __future__ import annotations


def family_header(name: str, kind: str, text: str) -> list[str]:
    """Return the lines before the series of a metric.

    >>> family_header("topics_topics", "gauge", "Topics.")
    ['# HELP topics_topics Topics.', '# TYPE topics_topics gauge']
    """
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
