"""Webhooks: the records of a topic, sent to a URL as signed requests."""
