"""The front process: it accepts connections, places them, supervises the workers, touches no record."""
