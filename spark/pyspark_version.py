"""The PySpark version, and which features a Python data source has in each version.

4.0  batch reads and writes, streams that are read
4.1  streams that are written, filters passed to a source (`narrow_reads.py`)
4.2  bounds of a micro-batch, and the trigger availableNow in several batches
"""

from __future__ import annotations

import pyspark

from spark.errors import SourceError

STREAM_WRITES = FILTERS = (4, 1)
BATCH_LIMITS = (4, 2)


def is_at_least(version: tuple[int, int]) -> bool:
    major, minor = pyspark.__version__.split(".")[:2]
    return (int(major), int(minor)) >= version


def require(version: tuple[int, int], feature: str, alternative: str) -> None:
    """Raise SourceError if this PySpark is older than `version`."""
    if not is_at_least(version):
        problem = f"{feature} PySpark {version[0]}.{version[1]} or newer, got {pyspark.__version__}"
        raise SourceError(f"{problem}; {alternative}")
