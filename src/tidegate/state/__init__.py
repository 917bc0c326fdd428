"""State holds what an operator must find again after a restart: named Arrow tables and JSON
documents behind one store protocol.
"""
