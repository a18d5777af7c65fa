"""`gavel evidence`: read, verify and prune what tools returned."""
