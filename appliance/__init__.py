"""An answer appliance for edge nodes: documents in, cited answers out, with no network.

The package's parts and what each must not know are described in ARCHITECTURE.md.
"""

__version__ = "0.1.0"
