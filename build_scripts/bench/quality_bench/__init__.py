"""Owns the benchmark of ranking: how well each stage of recall ranks sets of questions with known answers.

Must not be imported by the appliance.
"""
