"""The files of sealed and active segments: formats, reading, writing, and moving them between tiers."""
