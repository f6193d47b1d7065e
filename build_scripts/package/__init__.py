"""Owns what `build_scripts/build` makes of an installed environment: the frozen program, its archives, its lists.

Must not know how the environment was made.
"""
