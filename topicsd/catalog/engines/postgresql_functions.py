"""The functions of catalogs in PostgreSQL.

A commit is one call of a function, so that the rows of its topics are locked for as long as the server needs,
and not for round trips of a client.

S1  The lock on the blob comes first, then the locks on the topics by name, so that no two transactions wait
    for each other. Each statement after the locks sees what the previous holders committed. A condemnation
    takes locks on blobs only.
S2  The function decides as `topicsd/catalog/shared/part_changes.py` does. Tests compare both with an oracle.
S3  Plans are made once for a connection, of index scans: statistics are old while a new table grows.
"""

from __future__ import annotations

from typing import Final

NOW: Final = (
    "CREATE FUNCTION topicsd_shared_now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS"
    " 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint'"
)

_PLANS: Final = (
    "SET plan_cache_mode = force_generic_plan"
    " SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off"
)

COMMIT: Final = f"""
CREATE FUNCTION topicsd_shared_commit(
    blob text, blob_encoding text, repeated_ms bigint, kept_ms bigint, producers_max bigint,
    topics text[], incarnations bigint[], offsets bigint[], lengths bigint[], counts bigint[],
    ids text[], digests text[], names text[], first_numbers bigint[], last_numbers bigint[])
RETURNS TABLE (status text, first_seq bigint, last_seq bigint, next_number bigint)
LANGUAGE plpgsql {_PLANS} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint;
    is_condemned boolean;
    part record;
    one int;
    other int;
    topic text;
    topic_head bigint;
    new_names int;
    has_names boolean := false;
    known_names bigint;
    silent_names bigint;
    statuses text[];
    firsts bigint[];
    lasts bigint[];
    nexts bigint[];
    -- What is known of the append id of each part, and of its producer, after that part.
    known_firsts bigint[];
    known_lasts bigint[];
    known_digests text[];
    write_starts bigint[];
    write_ends bigint[];
    write_firsts bigint[];
    write_lasts bigint[];
    runs int := 0;
    run_topics text[] := '{{}}';
    run_firsts bigint[] := '{{}}';
    run_lasts bigint[] := '{{}}';
    run_offsets bigint[] := '{{}}';
    run_ends bigint[] := '{{}}';
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(blob, 0));
    is_condemned := EXISTS (SELECT 1 FROM topicsd_shared_condemned WHERE key = blob);
    PERFORM 1 FROM topicsd_shared_topics WHERE name = ANY (topics) ORDER BY name FOR UPDATE;
    now_ms := topicsd_shared_now_ms();
    FOR part IN
        SELECT p.number::int AS number, p.topic, p.start, p.length, p.count, p.digest, p.name,
            p.first_number, p.last_number, t.head, t.log_state,
            t.incarnation IS NOT DISTINCT FROM p.incarnation AS is_there,
            known.first_seq AS known_first, known.last_seq AS known_last, known.digest AS known_digest,
            w.first_number AS write_start, w.last_number AS write_end,
            w.first_seq AS write_first, w.last_seq AS write_last,
            lag(p.number::int) OVER (PARTITION BY p.topic, p.id ORDER BY p.number) AS same_id,
            CASE WHEN p.name IS NOT NULL THEN
                lag(p.number::int) OVER (PARTITION BY p.topic, p.name ORDER BY p.number) END AS same_name
        FROM unnest(topics, incarnations, offsets, lengths, counts, ids, digests, names, first_numbers,
            last_numbers) WITH ORDINALITY AS p (topic, incarnation, start, length, count, id, digest, name,
            first_number, last_number, number)
        LEFT JOIN topicsd_shared_topics t ON t.name = p.topic
        LEFT JOIN topicsd_shared_parts known ON known.topic = p.topic AND known.append_id = p.id
            AND known.committed_ms >= now_ms - repeated_ms
        LEFT JOIN topicsd_shared_producers w ON w.topic = p.topic AND w.name = p.name
        ORDER BY p.number
    LOOP
        one := part.number;
        IF topic IS DISTINCT FROM part.topic THEN
            topic := part.topic;
            topic_head := part.head;
            new_names := 0;
        END IF;
        other := part.same_id;
        IF other IS NOT NULL THEN
            part.known_first := known_firsts[other];
            part.known_last := known_lasts[other];
            part.known_digest := known_digests[other];
        END IF;
        other := part.same_name;
        IF other IS NOT NULL THEN
            part.write_start := write_starts[other];
            part.write_end := write_ends[other];
            part.write_first := write_firsts[other];
            part.write_last := write_lasts[other];
        END IF;
        firsts[one] := 0;
        lasts[one] := 0;
        nexts[one] := 0;
        IF NOT part.is_there THEN
            statuses[one] := 'missing';
        ELSIF part.known_first IS NOT NULL AND part.known_digest <> part.digest THEN
            statuses[one] := 'mismatch';
        ELSIF part.known_first IS NOT NULL THEN
            statuses[one] := 'repeated';
            firsts[one] := part.known_first;
            lasts[one] := part.known_last;
        ELSIF part.last_number <= part.write_end THEN
            statuses[one] := 'repeated';
            IF part.first_number = part.write_start AND part.last_number = part.write_end THEN
                firsts[one] := part.write_first;
                lasts[one] := part.write_last;
            END IF;
        ELSIF part.log_state = 'FENCED' THEN
            statuses[one] := 'fenced';
        ELSIF part.first_number <> part.write_end + 1 THEN
            statuses[one] := 'sequence_gap';
            nexts[one] := part.write_end + 1;
        ELSE
            statuses[one] := 'committed';
            IF part.name IS NOT NULL AND part.write_end IS NULL AND producers_max > 0 THEN
                SELECT count(*), count(*) FILTER (WHERE used_ms < now_ms - kept_ms)
                INTO known_names, silent_names
                FROM topicsd_shared_producers w WHERE w.topic = part.topic;
                IF known_names + new_names + 1 - silent_names > producers_max THEN
                    statuses[one] := 'producers_full';
                ELSIF NOT is_condemned THEN
                    new_names := new_names + 1;
                END IF;
            END IF;
            IF statuses[one] = 'committed' AND is_condemned THEN
                statuses[one] := 'condemned';
            END IF;
        END IF;
        IF statuses[one] = 'committed' THEN
            firsts[one] := topic_head + 1;
            topic_head := topic_head + part.count;
            lasts[one] := topic_head;
            part.known_first := firsts[one];
            part.known_last := lasts[one];
            part.known_digest := part.digest;
            IF part.name IS NOT NULL THEN
                has_names := true;
                part.write_start := part.first_number;
                part.write_end := part.last_number;
                part.write_first := firsts[one];
                part.write_last := lasts[one];
            END IF;
            IF runs > 0 AND run_topics[runs] = topic AND run_ends[runs] = part.start THEN
                run_lasts[runs] := topic_head;
                run_ends[runs] := part.start + part.length;
            ELSE
                runs := runs + 1;
                run_topics[runs] := topic;
                run_firsts[runs] := firsts[one];
                run_lasts[runs] := topic_head;
                run_offsets[runs] := part.start;
                run_ends[runs] := part.start + part.length;
            END IF;
        END IF;
        known_firsts[one] := part.known_first;
        known_lasts[one] := part.known_last;
        known_digests[one] := part.known_digest;
        write_starts[one] := part.write_start;
        write_ends[one] := part.write_end;
        write_firsts[one] := part.write_first;
        write_lasts[one] := part.write_last;
    END LOOP;
    IF runs > 0 THEN
        INSERT INTO topicsd_shared_extents
            (topic, first_seq, last_seq, type, key, encoding, byte_offset, byte_length, created_ms)
        SELECT r.topic, r.first_seq, r.last_seq, 'WAL', blob, blob_encoding, r.start, r.stop - r.start, now_ms
        FROM unnest(run_topics, run_firsts, run_lasts, run_offsets, run_ends)
            AS r (topic, first_seq, last_seq, start, stop);
        INSERT INTO topicsd_shared_parts AS old (topic, append_id, first_seq, last_seq, digest, committed_ms)
        SELECT p.topic, p.id, p.first_seq, p.last_seq, p.digest, now_ms
        FROM unnest(topics, ids, statuses, firsts, lasts, digests)
            AS p (topic, id, status, first_seq, last_seq, digest)
        WHERE p.status = 'committed'
        ON CONFLICT (topic, append_id) DO UPDATE SET first_seq = excluded.first_seq,
            last_seq = excluded.last_seq, digest = excluded.digest, committed_ms = excluded.committed_ms;
        UPDATE topicsd_shared_topics t SET head = r.head
        FROM (SELECT u.topic, max(u.last_seq) AS head
            FROM unnest(run_topics, run_lasts) AS u (topic, last_seq) GROUP BY u.topic) r
        WHERE t.name = r.topic;
    END IF;
    IF has_names THEN
        INSERT INTO topicsd_shared_producers AS old
            (topic, name, first_number, last_number, first_seq, last_seq, used_ms)
        SELECT DISTINCT ON (p.topic, p.name) p.topic, p.name, p.first_number, p.last_number,
            p.first_seq, p.last_seq, now_ms
        FROM unnest(topics, names, statuses, first_numbers, last_numbers, firsts, lasts) WITH ORDINALITY
            AS p (topic, name, status, first_number, last_number, first_seq, last_seq, number)
        WHERE p.status = 'committed' AND p.name IS NOT NULL
        ORDER BY p.topic, p.name, p.number DESC
        ON CONFLICT (topic, name) DO UPDATE SET first_number = excluded.first_number,
            last_number = excluded.last_number, first_seq = excluded.first_seq,
            last_seq = excluded.last_seq, used_ms = excluded.used_ms;
        IF producers_max > 0 THEN
            DELETE FROM topicsd_shared_producers w WHERE w.topic = ANY (run_topics)
            AND w.used_ms < now_ms - kept_ms AND w.name IN (
                SELECT s.name FROM topicsd_shared_producers s
                WHERE s.topic = w.topic AND s.used_ms < now_ms - kept_ms ORDER BY s.used_ms, s.name
                LIMIT greatest(0, (SELECT count(*) FROM topicsd_shared_producers c WHERE c.topic = w.topic)
                    - producers_max));
        END IF;
    END IF;
    RETURN QUERY SELECT * FROM unnest(statuses, firsts, lasts, nexts);
END $$
"""
