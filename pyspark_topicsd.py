"""The module through which PySpark finds the format `topicsd`.

PySpark imports every module whose name begins with `pyspark_`, and a module that fails to import would hide
the sources of all others. This module therefore imports nothing that may be missing.
"""

from __future__ import annotations

try:
    from spark.source.source import TopicsdSource as DefaultSource
except Exception:  # The package or a dependency is missing: do not offer the format.
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
