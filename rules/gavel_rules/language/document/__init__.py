"""Documents: their text as data with places, the models of rule sets, and diagnostics."""
