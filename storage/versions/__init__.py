"""Draft versions: weights, lineage, publication, promotion, canaries."""
