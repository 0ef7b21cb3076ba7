"""Every setting of the server: declaration, sources, relations."""
