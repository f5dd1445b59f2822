"""Small Flower apps, each in the layout of another kind of author."""
