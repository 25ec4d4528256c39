"""SGLang, by its published routes. Experimental: written from the source of 0.5.23, never run against it."""
