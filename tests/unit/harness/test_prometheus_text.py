"""The metrics parser accepts valid text and rejects almost valid text."""

from __future__ import annotations

import pytest

from tests.harness.output.prometheus_text import WrongText, parse

RIGHT = """# HELP a_total How many.
# TYPE a_total counter
a_total{shard="0"} 1
a_total{shard="1",kind="x y"} 2.5
# HELP h_us How long.
# TYPE h_us histogram
h_us_bucket{le="1"} 1
h_us_bucket{le="16"} 3
h_us_bucket{le="+Inf"} 4
h_us_sum 90
h_us_count 4
"""


def test_valid_text_is_parsed() -> None:
    families = parse(RIGHT)
    assert list(families) == ["a_total", "h_us"]
    assert families["a_total"].total() == 3.5
    assert families["a_total"].help == "How many."
    assert families["h_us"].series["h_us_count", frozenset()] == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("h_us_count 4\n", "h_us_count 4"),
        ("# HELP a_total How many.\n", ""),
        ("# HELP a_total How many.\n", "# HELP a_total \n"),
        ("# TYPE a_total counter\n", ""),
        ("# TYPE a_total counter", "# TYPE a_total gauge"),
        ("# TYPE a_total counter", "# TYPE a_total number"),
        ('{shard="1",kind="x y"}', '{shard="0"}'),
        ('{shard="0"}', "{shard=0}"),
        ('{shard="0"}', '{shard="0",}'),
        ('{shard="0"}', '{shard="0",shard="1"}'),
        ('a_total{shard="0"} 1', 'b_total{shard="0"} 1'),
        ('a_total{shard="0"} 1', 'a_total{shard="0"} one'),
        ('a_total{shard="0"} 1', ""),
        ('h_us_bucket{le="16"} 3', 'h_us_bucket{le="16"} 0'),
        ('h_us_bucket{le="+Inf"} 4\n', ""),
        ("h_us_count 4", "h_us_count 5"),
        ("h_us_sum 90\n", ""),
        ("# HELP h_us How long.\n# TYPE h_us histogram", "# HELP a_total Again.\n# TYPE a_total counter"),
    ],
)
def test_almost_valid_text_is_rejected(old: str, new: str) -> None:
    assert RIGHT.count(old) == 1
    with pytest.raises(WrongText):
        parse(RIGHT.replace(old, new))
