"""Owns the benchmark of recall: our vector search beside others, whole searches, and searches while writes go on.

Must not be imported by the appliance.
"""
