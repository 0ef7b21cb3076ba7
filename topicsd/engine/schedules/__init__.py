"""Schedules of queues: cron expressions, their ticks, and the jobs that are added at each tick."""
