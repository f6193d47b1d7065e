"""Owns recall: lexical and dense indexes, fusion, reranking, search.

Must not know HTTP, prompts or generation.
"""
