"""The commands of `gavel rules`, a module each: some work offline on files, the others on a server's rule sets."""
