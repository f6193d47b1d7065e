"""Owns `build_scripts/fuzz`: damaged documents, and what becomes of each.

Must not know how a format is read.
"""
