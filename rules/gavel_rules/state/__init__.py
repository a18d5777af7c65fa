"""The state of one bus at its head: its tables, and how each event changes them."""
