"""The reference is a windowed aggregate that is slow and obvious: one element, one window and one
rule at a time.
"""

from support.reference.model import Config, Reference

__all__ = ["Config", "Reference"]
