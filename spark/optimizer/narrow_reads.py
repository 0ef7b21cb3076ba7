"""A rule of Spark's optimizer that passes the needed columns and filters to the source.

PySpark (4.3) asks a Python source for all of its columns, whatever a query selects. It passes filters when a
setting allows it, but stores the last ones with the table: two filters of one frame, in one query or in two,
would then both be answered with the rows of one. This rule supplies what is missing. Install it once per
session:

    from spark.optimizer.narrow_reads import narrow_reads
    narrow_reads(spark)

Each read gets a table of its own, with the columns that are used (a column of the index if none is) and the
filters. `count(*)`, of all records or grouped by columns that are constant in a topic, becomes the sum of
`records`, the number of records that the source reports (`counts.py`). All filters stay in the plan, where
Spark applies them; the source uses them to skip segments and records. The rule leaves every plan that it does
not understand unchanged.

The rule is written in Java, the only way to run between Spark's plan and its reads, and is compiled by the
compiler that Spark has for its own generated code.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from spark.errors import SourceError
from spark.pyspark_version import FILTERS, require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULE = "topicsd.NarrowReads"
SOURCE = files("spark") / "java" / "NarrowReads.java"


def narrow_reads(session: SparkSession) -> None:
    """Install the rule for all later queries of this session; repeating the call is harmless.

    Raises SourceError where it cannot be installed: in a session of Spark Connect, or in a version of Spark
    with other internals. Queries work there as well, and read more.
    """
    require(
        FILTERS,
        "narrow_reads needs",
        "pass a schema with the needed columns, and bounds as options, instead",
    )
    try:
        experimental: Any = session._jsparkSession.experimental()
        rules = experimental.extraOptimizations()
        if any(rules.apply(at).getClass().getName() == RULE for at in range(rules.size())):
            return
        rule = _compile(session.sparkContext._jvm).loadClass(RULE).newInstance()
        getattr(experimental, "extraOptimizations_$eq")(rules.appended(rule))
    except Exception as error:
        reason = " ".join(str(error).splitlines()[:2])
        raise SourceError(f"narrow_reads: cannot install the rule in this session: {reason}") from None


def _compile(jvm: Any) -> Any:
    """Compile the rule and return the class loader that holds it."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.read_text(encoding="utf-8"))
    return compiler.getClassLoader()
