"""A dataset on a store as a folder of this machine: its files are brought when they are opened."""
