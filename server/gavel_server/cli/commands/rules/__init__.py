"""The commands of `gavel rules`, a module each: `authoring/` works on files, `deployment/` on a server's rule sets."""
