"""Owns the benchmark of the reranker: the same pairs for it and for the usual ways to run such a model, in turns.

Must not be imported by the appliance.
"""
