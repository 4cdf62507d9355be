"""Memories compared on the public sets, attacks on them, and memory servers of other systems."""
