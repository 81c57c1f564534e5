"""Pixels and geometry: decode, encode, resample, draw, move boxes along."""
