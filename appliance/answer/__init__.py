"""Owns the way of a question: recall, rerank, prompt, generate, cite.

Must not know wire formats.
"""
