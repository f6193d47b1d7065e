"""Whether constrained output is ever anything else than its constraint says: see build_scripts/bench/README.md."""
