"""The command `topicsd`: one file a command, and the text that it prints."""
