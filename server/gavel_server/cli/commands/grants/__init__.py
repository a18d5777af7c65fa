"""The commands of `gavel grants`: check, test and deploy who may do what."""
