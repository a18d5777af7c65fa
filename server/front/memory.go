package main

import (
	"runtime/debug"
	"runtime/metrics"
)

// Nearly nothing outlives a call. Memory of this size that is never touched makes the collector wait for as much garbage.
const ballastBytes = 32 << 20

// Memory beyond this is returned to the system as soon as the front is quiet: when it took less than quietBytes within a second.
const (
	residentBytesMax = 32 << 20
	quietBytes       = 4 << 20
)

// memory returns to the system what a peak has left. Go's runtime does that by itself, within minutes.
type memory struct {
	samples []metrics.Sample
	taken   uint64 // since the start, at the last tick
}

func newMemory() *memory {
	return &memory{samples: []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}}
}

// tick looks at the memory. Call it once a second.
func (memory *memory) tick() {
	metrics.Read(memory.samples)
	taken, total, released := memory.samples[0].Value.Uint64(), memory.samples[1].Value.Uint64(), memory.samples[2].Value.Uint64()
	isQuiet := taken-memory.taken < quietBytes
	memory.taken = taken
	if isQuiet && total-released > ballastBytes+residentBytesMax {
		debug.FreeOSMemory()
	}
}
