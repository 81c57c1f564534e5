"""How a finished dataset takes its place: staging, publishing, generations."""
