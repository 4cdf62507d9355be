"""Texts: as token ids, quoted where they are not trusted, without what a model thinks, and times."""
