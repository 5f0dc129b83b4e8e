"""What users hold: locks, leases, renewal. No backend is known here."""
