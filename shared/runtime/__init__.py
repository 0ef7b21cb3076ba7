"""Foundations of every process: clock, disk threads, logging, version."""
