"""A fake machine: disk, object store, clock, loop and threads, which fail and end as a test says."""
