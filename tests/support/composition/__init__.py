"""Random pipelines of several operators: their batch answer, their runs and their histories."""
