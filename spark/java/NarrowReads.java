package topicsd;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
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
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/** See spark/optimizer/narrow_reads.py, which compiles this class. Janino, Spark's compiler, has no lambdas. */
public class NarrowReads extends Rule {
    private static final String FORMAT = "topicsd";
    private static final String RECORDS = "records";
    private static final List OF_TOPIC = Arrays.asList(new Object[] {"topic", "partition", "timestampType"});
    private final Set made = Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap()));

    public TreeNode apply(TreeNode plan) {
        return ((LogicalPlan) plan).transformDown(new Narrowing());
    }

    /** Leaves plans that it does not understand unchanged; they only read more. */
    private class Narrowing extends AbstractPartialFunction {
        public boolean isDefinedAt(Object plan) {
            return true;
        }

        public Object applyOrElse(Object plan, Function1 otherwise) {
            LogicalPlan top = (LogicalPlan) plan;
            if (top instanceof Aggregate) {
                return counted((Aggregate) top);
            }
            if (!(top instanceof Project) && !(top instanceof org.apache.spark.sql.catalyst.plans.logical.Filter)) {
                return plan;
            }
            return narrowed(top);
        }
    }

    /** Lets the source count when a query counts records, grouped only by columns that are constant in a topic. */
    private LogicalPlan counted(Aggregate top) {
        LogicalPlan below = top.child();
        if (below instanceof Project) {
            Iterator columns = CollectionConverters.asJava(((Project) below).projectList()).iterator();
            while (columns.hasNext()) {
                if (!(columns.next() instanceof AttributeReference)) {
                    return top;
                }
            }
            below = ((Project) below).child();
        }
        AttributeSet used = top.references();
        org.apache.spark.sql.catalyst.plans.logical.Filter filter = null;
        if (below instanceof org.apache.spark.sql.catalyst.plans.logical.Filter) {
            filter = (org.apache.spark.sql.catalyst.plans.logical.Filter) below;
            used = used.$plus$plus(filter.references());
            below = filter.child();
        }
        if (!isOurs(below) || !areCounts(top.expressions())
            || (filter != null && !filter.condition().deterministic())) {
            return top;
        }
        DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) below;
        List output = new ArrayList();
        Iterator columns = CollectionConverters.asJava(relation.output()).iterator();
        while (columns.hasNext()) {
            AttributeReference one = (AttributeReference) columns.next();
            if (used.contains(one)) {
                output.add(one);
                if (!OF_TOPIC.contains(one.name())) {
                    return top;
                }
            }
        }
        AttributeReference records = DataTypeUtils$.MODULE$.toAttribute(
            new StructField(RECORDS, LongType$.MODULE$, true, Metadata.empty()));
        output.add(records);
        LogicalPlan read = narrower(relation, output, filters(filter));
        if (filter != null) {
            read = filter.copy(filter.condition(), read);
        }
        LogicalPlan over = (LogicalPlan) top.withNewChildren(asScala(Collections.singletonList(read)));
        return (LogicalPlan) over.transformExpressions(new Summing(records));
    }

    /** Whether the only aggregate function is `count(1)`, and everything else is deterministic. */
    private boolean areCounts(Seq expressions) {
        Iterator found = CollectionConverters.asJava(expressions).iterator();
        while (found.hasNext()) {
            Expression one = (Expression) found.next();
            boolean isFine = one instanceof AggregateExpression
                ? isCount((AggregateExpression) one)
                : one.deterministic() && areCounts(one.children());
            if (!isFine) {
                return false;
            }
        }
        return true;
    }

    private boolean isCount(AggregateExpression one) {
        if (!(one.aggregateFunction() instanceof Count) || one.isDistinct() || one.filter().isDefined()) {
            return false;
        }
        Iterator counted = CollectionConverters.asJava(one.aggregateFunction().children()).iterator();
        while (counted.hasNext()) {
            Object each = counted.next();
            if (!(each instanceof Literal) || ((Literal) each).value() == null) {
                return false;
            }
        }
        return true;
    }

    /** Replaces `count` by the sum of the source's counts: 0, not null, when there are none. */
    private class Summing extends AbstractPartialFunction {
        private final AttributeReference records;

        Summing(AttributeReference records) {
            this.records = records;
        }

        public boolean isDefinedAt(Object expression) {
            return expression instanceof AggregateExpression
                && ((AggregateExpression) expression).aggregateFunction() instanceof Count;
        }

        public Object applyOrElse(Object expression, Function1 otherwise) {
            if (!isDefinedAt(expression)) {
                return otherwise.apply(expression);
            }
            List summed = new ArrayList();
            summed.add(((AggregateFunction) function("sum", Collections.singletonList(records))).toAggregateExpression());
            summed.add(Literal$.MODULE$.apply(new Long(0)));
            return function("coalesce", summed);
        }
    }

    private static Expression function(String name, List arguments) {
        return (Expression) FunctionRegistry$.MODULE$.builtin()
            .lookupFunction(new FunctionIdentifier(name), asScala(arguments));
    }

    private static Seq asScala(List list) {
        return CollectionConverters.asScala(list).toList();
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
        if (!isOurs(below)) {
            return top;
        }
        DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) below;
        if (used != null && filter != null) {
            used = used.$plus$plus(filter.references());
        }
        List output = usedColumns(CollectionConverters.asJava(relation.output()), used);
        List filters = filters(filter);
        if (output.size() == relation.output().size() && filters.isEmpty()) {
            return top;
        }
        LogicalPlan read = narrower(relation, output, filters);
        if (filter != null) {
            read = filter.copy(filter.condition(), read);
        }
        return top instanceof Project ? ((Project) top).copy(((Project) top).projectList(), read) : read;
    }

    private boolean isOurs(LogicalPlan plan) {
        if (!(plan instanceof DataSourceV2ScanRelation)) {
            return false;
        }
        DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) plan;
        Table table = relation.relation().table();
        return relation.scan() instanceof PythonScan
            && table instanceof PythonTable
            && FORMAT.equalsIgnoreCase(table.name())
            && !made.contains(relation.scan())
            // With this column a row counts several records.
            && !Arrays.asList(relation.scan().readSchema().fieldNames()).contains(RECORDS);
    }

    /** Returns the used columns in their order; if a query uses none, the cheapest one, whose rows can be counted. */
    private List usedColumns(List output, AttributeSet used) {
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

    private List filters(org.apache.spark.sql.catalyst.plans.logical.Filter filter) {
        List found = new ArrayList();
        if (filter != null) {
            addTranslated(filter.condition(), found);
        }
        return found;
    }

    /** Adds the parts of the condition that can be passed to the source. They also stay in the plan. */
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

    /** Creates a table for each read: a shared table would have the filters that were passed to it last. */
    private LogicalPlan narrower(DataSourceV2ScanRelation relation, List output, List filters) {
        StructField[] fields = new StructField[output.size()];
        for (int at = 0; at < fields.length; at++) {
            AttributeReference one = (AttributeReference) output.get(at);
            fields[at] = one.name().equals(RECORDS)
                ? new StructField(RECORDS, one.dataType(), one.nullable(), one.metadata())
                : relation.scan().readSchema().apply(one.name());
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
        return copied(relation, scan, asScala(output));
    }

    /** Copies the relation by reflection: the number of its parts differs between versions. */
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
        throw new IllegalStateException("cannot copy the scan relation");
    }
}
