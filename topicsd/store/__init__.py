"""Object stores: where immutable objects live that outlast the disk of one machine."""
