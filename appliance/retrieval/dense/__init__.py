"""Owns vector search: the hot tier in memory, the cold segments on the disk, and their files.

Must not know text, documents or the store: ids and unit vectors come in, ids and cosines go out.
"""
