"""Owns what was computed before and may be computed again: bytes by key, in memory and on disk.

Must not know questions, answers or documents. A cache that is damaged, locked or full is a miss, never an error.
"""
