"""Files and buckets: written aside, synced, renamed; encrypted where asked."""
