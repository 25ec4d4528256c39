"""Draft length: the rules that choose gamma, and the costs they weigh."""
