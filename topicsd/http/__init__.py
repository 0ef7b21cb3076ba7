"""How the worker speaks HTTP: connections that are cut into requests, and one set of handlers behind them."""
