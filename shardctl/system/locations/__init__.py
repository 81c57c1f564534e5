"""Locations: folders and files, of this machine or on an object store."""
