"""Control endpoints answered by the supervisor, and the requests of workers over the link."""
