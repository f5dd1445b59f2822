"""Jinja templates of the report's page, in modules because Flower's app bundles hold no other kind of file."""
