"""Specifications of operators: frozen data with equality, an evaluable repr and a JSON form."""
