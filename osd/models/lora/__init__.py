"""LoRA adapters over one base draft: read, kept in a bank, applied row by row."""
