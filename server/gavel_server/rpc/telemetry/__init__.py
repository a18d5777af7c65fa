"""What is measured and traced of calls."""
