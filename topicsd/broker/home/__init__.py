"""The home broker of a topic, which commits what the brokers of other nodes have put."""
