"""Tools for authors of rule sets: warnings, tests and coverage, sample cases, differences, formatting, diagrams, simulation.

They use the rule language and arbitration, which never import them. No decision is made with them.
"""
