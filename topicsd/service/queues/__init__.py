"""Endpoints of queues: claim, ack, nack, extend, work, redrive, dead letters."""
