"""Owns the test of the Debian package on a booted system. Run: `build_scripts/boot_test`.

Must not know how the package is made.
"""
