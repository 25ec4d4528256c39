"""The database: schema, drivers, leases, logs."""
