"""Optional parts: each adds to the core through entry points, and the core imports none of them."""
