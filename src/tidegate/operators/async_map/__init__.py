"""The async map: order of results and watermarks around pending calls."""
