"""Commands that check, test and show rule sets in files, without a server."""
