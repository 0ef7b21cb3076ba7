"""Copy records along routes between topics."""
