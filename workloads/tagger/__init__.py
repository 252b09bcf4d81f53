"""A tagger of sequences, as an installed program would be laid out."""
