"""Nodes, crashes and an oracle for the tests of catalogs."""
