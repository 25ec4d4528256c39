"""The decode loop: admission, prefill, the step, stopping."""
