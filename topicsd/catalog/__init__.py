"""The catalog: the few facts on which nodes agree, as verbs for topics that move between them."""
