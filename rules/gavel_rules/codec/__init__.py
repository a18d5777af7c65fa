"""Hand-written protobuf bytes: fields, pre-encoded fragments of messages, and framing. No other package of Gavel encodes by hand."""
