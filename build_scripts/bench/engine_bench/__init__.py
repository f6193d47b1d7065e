"""Owns the benchmark of the generation engine: the same work for it and for llama-server, in turns.

Must not be imported by the appliance.
"""
