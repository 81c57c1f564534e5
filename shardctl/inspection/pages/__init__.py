"""Pages to look at: each one file that needs nothing else, no network, light or dark as its reader
likes it."""
