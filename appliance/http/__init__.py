"""Owns the HTTP service: routes, wire shapes, streams, sockets, and how it starts and stops.

Must not know how answers are made or documents are stored: all of that is behind `ports.Backend`.
"""
