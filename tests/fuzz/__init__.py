"""Fuzzing of everything that decodes: targets, inputs to start from, and inputs that crashed."""
