"""Forms of other tools: export to them, look into them, check them."""
