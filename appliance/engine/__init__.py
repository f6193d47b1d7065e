"""Owns generation: the engine process, its protocol, its supervision.

Must not know documents, retrieval or HTTP.
"""
