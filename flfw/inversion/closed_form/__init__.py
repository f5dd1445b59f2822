"""What is read off an update in closed form, without a search."""
