"""Specifications say what to compute, as small frozen data with an equality, a repr that can be
pasted back and a JSON form.
"""
