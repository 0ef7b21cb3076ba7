"""Bundles: all of one topic as a movable thing, gathered on one shard and adopted by another."""
