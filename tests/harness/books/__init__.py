"""Books of what was asked and answered, and the judgement of what a restart shows."""
