"""The files of active and sealed segments: formats, reading, writing, and the store of each tier."""
