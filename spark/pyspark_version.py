"""The PySpark version, and which features a Python data source has in each version.

4.0  batch reads and writes, streams that are read
4.1  streams that are written, filters passed to a source (`narrow_reads.py`)
4.2  bounds of a micro-batch, and the trigger availableNow in several batches
"""

from __future__ import annotations

import pyspark

from spark.errors import SourceError

WRITES_STREAMS = KNOWS_FILTERS = (4, 1)
BOUNDS_BATCHES = (4, 2)


def has(version: tuple[int, int]) -> bool:
    major, minor = pyspark.__version__.split(".")[:2]
    return (int(major), int(minor)) >= version


def need(version: tuple[int, int], what: str, instead: str) -> None:
    """Raise SourceError if this PySpark is older than `version`."""
    if not has(version):
        told = f"{what} PySpark {version[0]}.{version[1]} or newer, and this is {pyspark.__version__}"
        raise SourceError(f"{told}; {instead}")
