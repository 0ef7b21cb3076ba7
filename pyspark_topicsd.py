"""What PySpark finds by itself: it imports every module whose name begins with `pyspark_`, and one that fails
would hide the sources of all others. So this one imports nothing that may be missing.
"""

from __future__ import annotations

try:
    from spark.source.source import TopicsdSource as DefaultSource
except Exception:  # The package, or what it needs, is not whole: then there is no format of this name.
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
