"""One thin servicer per service of the contract: validate, call, map. None of them decides anything."""
