"""The benchmark of the server: lines, rounds, results."""
