"""Where samples come from: files are found (walk), cut into units (formats), and are of a kind (kinds)."""
