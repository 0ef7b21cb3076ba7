"""Scripted histories of a cluster that end a program at one chosen request, and their judgement."""
