"""What the front process answers itself, and what workers ask of it over the link."""
