package topicsd;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonFilterPushdownResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/** See spark/narrow_reads.py, which compiles this in Spark. Janino, Spark's compiler, knows no lambdas. */
public class NarrowReads extends Rule {
    private static final String FORMAT = "topicsd";
    private final Set made = Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap()));

    public TreeNode apply(TreeNode plan) {
        return ((LogicalPlan) plan).transformDown(new Narrowing());
    }

    /** What is not understood stays as it is: it reads more, and nothing else. */
    private class Narrowing extends AbstractPartialFunction {
        public boolean isDefinedAt(Object plan) {
            return true;
        }

        public Object applyOrElse(Object plan, Function1 otherwise) {
            LogicalPlan top = (LogicalPlan) plan;
            if (!(top instanceof Project) && !(top instanceof org.apache.spark.sql.catalyst.plans.logical.Filter)) {
                return plan;
            }
            return narrowed(top);
        }
    }

    private LogicalPlan narrowed(LogicalPlan top) {
        AttributeSet used = top instanceof Project ? top.references() : null;
        LogicalPlan below = top;
        org.apache.spark.sql.catalyst.plans.logical.Filter filter = null;
        if (top instanceof Project) {
            below = ((Project) top).child();
        }
        if (below instanceof org.apache.spark.sql.catalyst.plans.logical.Filter) {
            filter = (org.apache.spark.sql.catalyst.plans.logical.Filter) below;
            below = filter.child();
        }
        if (!(below instanceof DataSourceV2ScanRelation) || !isOurs((DataSourceV2ScanRelation) below)) {
            return top;
        }
        DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) below;
        if (used != null && filter != null) {
            used = used.$plus$plus(filter.references());
        }
        List output = wanted(CollectionConverters.asJava(relation.output()), used);
        List filters = new ArrayList();
        if (filter != null) {
            addTranslated(filter.condition(), filters);
        }
        if (output.size() == relation.output().size() && filters.isEmpty()) {
            return top;
        }
        LogicalPlan read = narrower(relation, output, filters);
        if (filter != null) {
            read = filter.copy(filter.condition(), read);
        }
        return top instanceof Project ? ((Project) top).copy(((Project) top).projectList(), read) : read;
    }

    private boolean isOurs(DataSourceV2ScanRelation relation) {
        Table table = relation.relation().table();
        return relation.scan() instanceof PythonScan
            && table instanceof PythonTable
            && FORMAT.equalsIgnoreCase(table.name())
            && !made.contains(relation.scan());
    }

    /** In their order; of a query that wants none, the cheapest one, whose rows can be counted. */
    private List wanted(List output, AttributeSet used) {
        if (used == null) {
            return output;
        }
        List found = new ArrayList();
        Object cheapest = output.get(0);
        for (int at = 0; at < output.size(); at++) {
            AttributeReference one = (AttributeReference) output.get(at);
            if (used.contains(one)) {
                found.add(one);
            }
            if (one.name().equals("offset") || one.name().equals("seq")) {
                cheapest = one;
            }
        }
        if (found.isEmpty()) {
            found.add(cheapest);
        }
        return found;
    }

    /** The parts of the condition that a source is told of. They stay in the plan, too. */
    private void addTranslated(Expression condition, List filters) {
        if (condition instanceof And) {
            addTranslated(((And) condition).left(), filters);
            addTranslated(((And) condition).right(), filters);
            return;
        }
        Option found = DataSourceStrategy$.MODULE$.translateFilter(condition, true);
        if (found.isDefined()) {
            filters.add(found.get());
        }
    }

    /** A table of its own for each read: one that is shared has the filters that were passed to it last. */
    private LogicalPlan narrower(DataSourceV2ScanRelation relation, List output, List filters) {
        StructField[] fields = new StructField[output.size()];
        for (int at = 0; at < fields.length; at++) {
            fields[at] = relation.scan().readSchema().apply(((AttributeReference) output.get(at)).name());
        }
        StructType schema = new StructType(fields);
        Map given = new HashMap(relation.relation().options().asCaseSensitiveMap());
        if (!filters.isEmpty()) {
            given.put("narrowed", "true");
        }
        CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(given);
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(FORMAT);
        PythonTable table = (PythonTable) source.getTable(schema, new Transform[0], given);
        if (!filters.isEmpty()) {
            PythonDataSourceCreationResult created =
                source.getOrCreateDataSourceInPython(FORMAT, options, new Some(schema));
            org.apache.spark.sql.sources.Filter[] pushed = (org.apache.spark.sql.sources.Filter[])
                filters.toArray(new org.apache.spark.sql.sources.Filter[filters.size()]);
            Option found = source.source().pushdownFiltersInPython(created, schema, pushed);
            if (!found.isDefined()) {
                return narrower(relation, output, new ArrayList());
            }
            source.setReadInfo(((PythonFilterPushdownResult) found.get()).readInfo());
        }
        Scan scan = table.newScanBuilder(options).build();
        made.add(scan);
        return copied(relation, scan, CollectionConverters.asScala(output).toList());
    }

    /** How many parts there are to copy is not the same in all versions. */
    private LogicalPlan copied(DataSourceV2ScanRelation relation, Scan scan, Seq output) {
        try {
            Method[] methods = DataSourceV2ScanRelation.class.getMethods();
            for (int at = 0; at < methods.length; at++) {
                if (methods[at].getName().equals("copy")) {
                    Object[] parts = new Object[methods[at].getParameterCount()];
                    for (int part = 0; part < parts.length; part++) {
                        parts[part] = DataSourceV2ScanRelation.class
                            .getMethod("copy$default$" + (part + 1), new Class[0])
                            .invoke(relation, new Object[0]);
                    }
                    parts[1] = scan;
                    parts[2] = output;
                    return (LogicalPlan) methods[at].invoke(relation, parts);
                }
            }
        } catch (ReflectiveOperationException problem) {
            throw new IllegalStateException(problem);
        }
        throw new IllegalStateException("a scan cannot be copied");
    }
}
