"""The process that decodes, the one that answers, and the pipe between them."""
