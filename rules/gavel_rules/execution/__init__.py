"""Execution: leases, reports, reviews and compensations of approved decisions."""
