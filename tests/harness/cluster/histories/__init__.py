"""Histories of a cluster: workload, faults, moves of topics, and the judgement."""
