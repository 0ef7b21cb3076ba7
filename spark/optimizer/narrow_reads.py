"""Queries read what they need: Spark tells the source of the columns that are used, and of filters.

PySpark (4.3) asks a source written in Python for all of its columns, whatever a query selects. It passes
filters on when a setting says so, but keeps the last ones with the table: two filters of one frame, in one
query or one after the other, would then both be answered with the rows of one. So here is what is missing, as
a rule of Spark's optimizer, which is to be in a session once:

    from spark.optimizer.narrow_reads import narrow_reads
    narrow_reads(spark)

Each read gets a table of its own, with the columns that are used (one of the index, where there are none)
and the filters. `count(*)`, of all or by what is the same in a whole topic, becomes the sum of `records`, in
which the source says how many there are (`counts.py`). All filters stay in the plan, where Spark applies
them; the source goes by them to leave out what they leave out. What the rule does not understand it leaves
as it is.

It is written in Java, since there is nowhere else to come between Spark's plan and its reading, and compiled
by the compiler that Spark has for its own generated code.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from spark.errors import SourceError
from spark.pyspark_version import KNOWS_FILTERS, need

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULE = "topicsd.NarrowReads"
SOURCE = files("spark") / "java" / "NarrowReads.java"


def narrow_reads(session: SparkSession) -> None:
    """For all queries of this session from here on; once is enough, and more often does no harm.

    SourceError where it cannot be: in a session of Spark Connect, or a version of Spark that is not built so.
    Queries are answered there as well, and read more.
    """
    need(
        KNOWS_FILTERS,
        "narrow_reads needs",
        "a schema of the columns, and bounds as options, read less as well",
    )
    try:
        experimental: Any = session._jsparkSession.experimental()
        rules = experimental.extraOptimizations()
        if any(rules.apply(at).getClass().getName() == RULE for at in range(rules.size())):
            return
        rule = _compiled(session.sparkContext._jvm).loadClass(RULE).newInstance()
        getattr(experimental, "extraOptimizations_$eq")(rules.appended(rule))
    except Exception as error:
        told = " ".join(str(error).splitlines()[:2])
        raise SourceError(f"reads cannot be narrowed in this session: {told}") from None


def _compiled(jvm: Any) -> Any:
    """The class loader that has it."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.read_text(encoding="utf-8"))
    return compiler.getClassLoader()
