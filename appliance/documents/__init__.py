"""Owns a document's way in: find, read, cut into chunks, embed, store.

Must not know how search ranks or how answers are made.
"""
