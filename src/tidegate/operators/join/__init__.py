"""The windowed join: sides, ways of matching rows, unmatched rows and output."""
