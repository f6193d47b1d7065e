"""Owns how model files are built from what a package registry carries, bit for bit the same everywhere.

Must not know where the inputs come from nor where the outputs are kept.
"""
