"""What authors of rule sets have beside the compiler: tests and coverage, warnings, made cases, differences, formatting, simulation.

All of it stands on the language and on arbitration; nothing there knows of it, and no decision is ever made with it.
"""
