"""From a parsed request to its response: decode, ask the engine, render."""
