"""Owns ONNX Runtime sessions: the embedder and the cross-encoder, batching, provider choice.

Must not know retrieval policy, documents or HTTP.
"""
