"""Watermarks at run time: promises of many sources and inputs, coalesced into one output that never
goes back.
"""
