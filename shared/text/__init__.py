"""Values as people write and read them: durations, sizes, times, nearest names."""
