"""Owns what all benchmarks share: spreads and ratios, tables, the conditions of a measurement, RESULTS.md.

Must not know what is measured.
"""
