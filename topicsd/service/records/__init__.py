"""Single records and uploads of many: what `/v0/topics/:topic/records` takes and returns."""
