"""Owns measuring what telemetry costs: the same searches with it on and off, in turns.

Must not know how telemetry works.
"""
