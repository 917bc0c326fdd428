"""Pipeline files: inputs, a window, triggers, aggregates and sinks in one YAML file."""

from tidegate.pipeline.diagnostics import PipelineFileError, Problem
from tidegate.pipeline.parser import load, parse
from tidegate.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "PipelineFileError", "Problem", "load", "parse"]
