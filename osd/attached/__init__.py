"""Serving engines that are not ours (vLLM, SGLang): what they answer is harvested, drafts are published to them."""
