"""Who is served next, and how much is too much: decisions about time, made of numbers alone."""
