"""Commands about identity: certificates to try out, tokens, and contexts of the command line."""
