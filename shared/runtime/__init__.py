"""What every process runs on: clock, disk threads, logging, version."""
