"""The command line `topicsd`: one file for each command, and the text that it prints."""
