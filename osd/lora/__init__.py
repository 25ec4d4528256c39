"""LoRA adapters, unmerged: read from PEFT folders, and added to passes that rows of several adapters share."""
