"""Owns the recipe of the pocket reranker: data to mined candidates to trained delta to measured mix.

Must not be imported by the appliance: it needs torch, which the appliance does not.
"""
