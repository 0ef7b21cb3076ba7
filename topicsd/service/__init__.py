"""The path from a parsed request to its response: decode, call the engine, render."""
