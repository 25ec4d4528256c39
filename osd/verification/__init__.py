"""What the target makes of a draft: its pass, warping, the acceptance rules."""
