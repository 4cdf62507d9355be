"""Exports of other assistants and memories of other systems: read, imported, trained on."""
