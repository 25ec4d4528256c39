"""API keys, tenants, serving processes."""
