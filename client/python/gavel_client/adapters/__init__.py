"""Adapters that put the gate (`gavel_client.gate`) into agent frameworks, one module for each.

Each needs the extra of gavel-client that has its name: `pip install "gavel-client[langgraph]"`. None is imported here.
"""
