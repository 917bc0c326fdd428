"""Pipeline files: inputs, a window, triggers, aggregates and sinks in one YAML file, read with
errors that say where and why.
"""

from tidegate.pipeline.problems import PipelineFileError, Problem
from tidegate.pipeline.reading import load, parse
from tidegate.pipeline.run import Pipeline

__all__ = ["Pipeline", "PipelineFileError", "Problem", "load", "parse"]
