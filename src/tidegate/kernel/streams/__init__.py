"""Algorithms of streams with writer-side watermarks: segments, watermarks, reader groups."""
