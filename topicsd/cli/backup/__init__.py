"""The command `topicsd backup`: create, list, verify, restore and prune."""
