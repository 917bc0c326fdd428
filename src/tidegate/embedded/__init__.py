"""The embedded runtime: operators driven by plain calls inside a Python process."""
