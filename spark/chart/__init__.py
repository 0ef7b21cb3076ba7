"""Charts as PNG files, without a plotting library."""
