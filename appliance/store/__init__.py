"""Owns the SQLite store: collections, documents, chunks, vectors. The truth; everything else is derived.

Must not know indexes, models or HTTP.
"""
