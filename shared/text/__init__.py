"""Values as people write and read them: durations, sizes, times, names that are nearly right."""
