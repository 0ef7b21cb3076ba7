"""The commands for people: one file a command, and one row in `command_line.py`."""
