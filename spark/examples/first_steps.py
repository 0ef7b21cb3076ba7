# %% [markdown]
"""From records in topics to tables and back: an introduction to Spark with topicsd.

Start a server (`make run`), then run this file (`python spark/examples/first_steps.py`), or open it in an
editor that supports cells (`# %%`) and run them one after the other. It needs what `pip install '.[spark]'`
installs, and Java 17 or 21. It writes to topics whose names begin with `first-steps`, and to ./first-steps.

For a server with another address or data directory, set TOPICS_URL and TOPICS_DATA_DIR.
"""

# %%
import os
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json, struct, to_json, window
from pyspark.sql.functions import sum as total

from spark.optimizer.narrow_reads import narrow_reads
from spark.session import local_session

URL = os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")
DATA = os.environ.get("TOPICS_DATA_DIR", "./topics-data")
FOLDER = Path(os.environ.get("FIRST_STEPS_DIR", "./first-steps"))

# An ordinary session. This helper also finds Java, and says what to install if there is none.
session = local_session("first steps")
session.sparkContext.setLogLevel("ERROR")
# With this rule a query reads only the columns and segments that it needs.
narrow_reads(session)

# %% [markdown]
# ## Writing
#
# A record is JSON, so `to_json` turns a table into records: the column `value` becomes the data,
# `key` becomes the tag, and the option `topic` names the destination (a column of that name works as well).

# %%
kinds = ["coffee", "tea", "cake"]
orders = session.range(1, 1201).selectExpr(
    "id",
    f"element_at(array('{kinds[0]}', '{kinds[1]}', '{kinds[2]}'), cast(id % 3 + 1 as int)) as kind",
    "round(1 + (id * 7 % 50) / 10, 2) as price",
)
records = orders.select(to_json(struct("id", "kind", "price")).alias("value"), col("kind").alias("key"))


def write(frame: DataFrame, topic: str) -> None:
    frame.write.format("topicsd").mode("append").option("url", URL).option("topic", topic).save()


write(records, "first-steps")

# %% [markdown]
# ## Reading
#
# Spark reads the server's files itself: reads cost the server nothing, and it need not run. A record that was
# acknowledged a moment ago may not be on disk yet, and is then not read; this code waits for it.


# %%
def read() -> DataFrame:
    return session.read.format("topicsd").option("subscribe", "first-steps").load(DATA)


def wait_for(count: int) -> None:
    for _ in range(100):
        if read().count() >= count:
            return
        time.sleep(0.1)
    raise SystemExit(f"{DATA} is not the data directory of the server {URL}; set TOPICS_DATA_DIR to it")


wait_for(1200)
read().show(3)

# %% [markdown]
# The columns are Kafka's. `value` is JSON in bytes; with a schema for it, it becomes columns again.

# %%
KIND = "id bigint, kind string, price double"
parsed = read().select(from_json(col("value").cast("string"), KIND).alias("order"), "timestamp", "offset")
sold = parsed.groupBy("order.kind").agg(total("order.price").alias("sum")).orderBy("kind")
sold.show()

# %% [markdown]
# Options select a part of a topic, from a seq or a time and up to either, and skip files before a record is
# read. This reads from seq 1191, which gives the newest ten records when the program runs for the first time.

# %%
newest = (
    session.read.format("topicsd")
    .option("subscribe", "first-steps")
    .option("startingOffsets", '{"first-steps":1191}')
    .load(DATA)
)
newest.select("offset", "key").show(3)

# %% [markdown]
# ## Streaming
#
# The same read as a stream: it stores its position in a checkpoint and resumes from there after any failure.
# With `availableNow` it takes all available records and ends, so that a timer can start it.


# %%
def copy_new_records() -> int:
    stream = session.readStream.format("topicsd").option("subscribe", "first-steps")
    rows = stream.option("startingOffsets", "earliest").load(DATA).selectExpr("offset", "string(value)")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(FOLDER / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(FOLDER / "copy"))
    query.awaitTermination()
    return session.read.parquet(str(FOLDER / "copy")).count()


first_count = copy_new_records()
write(records.limit(5), "first-steps")
wait_for(1205)
second_count = copy_new_records()
print(f"{first_count} records at first, {second_count - first_count} new records since")

# %% [markdown]
# ## Writing results back
#
# The result is a table, and is written to a topic like the first one; watchers of that topic receive it.

# %%
per_minute = parsed.groupBy(window("timestamp", "1 minute").alias("minute"), "order.kind").agg(
    total("order.price").alias("sum")
)
write(per_minute.select(to_json(struct("minute.start", "kind", "sum")).alias("value")), "first-steps-sums")

# %% [markdown]
# ## Jobs
#
# Common tasks have commands, and each of them has a `--help`:
#
# ```
# python -m spark export --path ./topics-data --topics first-steps --out ./lake
# python -m spark stats --path ./topics-data --topics first-steps --png stats.png
# ```
