"""Scripts of measurements with frameworks; each runs in the framework's interpreter and prints one JSON line."""
