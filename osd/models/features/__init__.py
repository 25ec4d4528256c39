"""Feature drafts: small networks that read the target's hidden states (Medusa, EAGLE, EAGLE-3)."""
