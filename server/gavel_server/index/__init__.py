"""The index of events: which events pass a filter, answered from a read model beside the log."""
