"""Passes over the LiteRT flatbuffer, one file a pass."""
