"""Charts as PNG files, with no library."""
