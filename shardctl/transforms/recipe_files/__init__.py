"""Files of recipes: reading, checking and writing them, what options change in them, and their JSON
schema."""
